// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collective/reduction.h"
#include "collective/steps/blocks.h"
#include "collective/steps/send_receive.h"

namespace tw::collective::steps {
namespace {

// One turn: a block goes to the right, and another one comes from the left.
//   use(from, data): what lies there in the block that comes
template <class Use>
Status turn(Messages& messages, const Scattered& goes, const Scattered& comes, Packed& packed,
            Use&& use) {
  const Team& team = messages.team();
  return send_receive(
      messages, 0, Leg{team.after(1), goes.size()}, Leg{team.before(1), comes.size()},
      [&](size_t from, size_t length) { return packed.of(goes, from, length); },
      [&](size_t from, const std::byte* data, size_t length) {
        use(from, std::span(data, length));
      });
}

}  // namespace

Status ring_of_blocks(Messages& messages, Blocks blocks, Packed& packed) {
  const Team& team = messages.team();
  for (int t = 0; t < team.size() - 1; ++t) {
    const Scattered& comes = blocks[static_cast<size_t>(team.before(t + 1))];
    if (Status status =
            turn(messages, blocks[static_cast<size_t>(team.before(t))], comes, packed,
                 [&](size_t from, std::span<const std::byte> data) { comes.put(from, data); });
        !status.ok())
      return status;
  }
  return {};
}

// The sum for a host begins its way at the rank behind that one's, and comes there last.
Status ring_of_sums(Messages& messages, Blocks blocks, Packed& packed, const BlockReduction& how,
                    std::byte* result) {
  const Team& team = messages.team();
  const size_t width = size_of(how.type);
  for (int t = 1; t < team.size(); ++t) {
    const Scattered& comes = blocks[static_cast<size_t>(team.before(t + 1))];
    const bool last = t == team.size() - 1;
    const ReduceOp op = how.op == ReduceOp::kAverage && !last ? ReduceOp::kSum : how.op;
    if (Status status = turn(
            messages, blocks[static_cast<size_t>(team.before(t))], comes, packed,
            [&](size_t from, std::span<const std::byte> data) {
              size_t through = 0;
              comes.each(from, data.size(), [&](std::byte* place, size_t size) {
                const std::array both{data.data() + through, static_cast<const std::byte*>(place)};
                tw::reduce(how.type, op, both, last ? result + from + through : place, size / width,
                           how.ranks);
                through += size;
              });
            });
        !status.ok())
      return status;
  }
  return {};
}

}  // namespace tw::collective::steps
