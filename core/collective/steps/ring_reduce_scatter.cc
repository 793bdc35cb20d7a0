// SPDX-License-Identifier: Apache-2.0
#include "collective/steps/around.h"

namespace tw::collective::steps {

Status ring_reduce_scatter(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type);
  const Around way(messages);
  // Sums on their way: those that wait for their turn, and those that are being sent.
  const size_t slots = way.distance() + Messages::kLeaving + 2 - way.ahead();
  const size_t room = std::min(call.bytes(), Messages::kChunk);
  std::byte* const sums = messages.room(slots * room);
  const auto slot = [&](size_t taken) { return sums + taken % slots * room; };
  // A share begins its way at the rank behind its own, and comes to its own in the last turn.
  const auto mine = [&](size_t back, const Part& piece) {
    const auto share = static_cast<size_t>(team.before(static_cast<int>(back)));
    return in + (share * call.count + piece.begin) * width;
  };
  return go_around(
      messages, way,
      [&](size_t turn, const Part& piece, size_t i) {
        return turn == 0 ? mine(1, piece) : slot(i - way.distance());
      },
      [&](size_t turn, const Part& piece, size_t i, const std::byte* data) {
        const bool last = turn + 2 == static_cast<size_t>(team.size());
        combine(messages, data, mine(turn + 2, piece), last ? out + piece.begin * width : slot(i),
                piece.size(), last);
      });
}

}  // namespace tw::collective::steps
