// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status ring(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type), each = Messages::kChunk / width;
  const int size = team.size(), right = team.after(1), left = team.before(1);
  if (in != out && call.count != 0) std::memcpy(out, in, call.bytes());
  const auto part = [&](int i) {
    return part_of(call.count, width, (i % size + size) % size, size);
  };
  // One step: part `gone` goes to the right, part `come` comes from the left, chunk by chunk.
  const auto step = [&](int gone, int come, auto&& use) -> Status {
    const Part there = part(gone), here = part(come);
    const size_t gives = there.size() * width, takes = here.size() * width;
    size_t sent = 0, taken = 0;
    bool first = true;
    while (first || sent < gives || taken < takes) {
      if (first || taken < takes)
        if (Status status = messages.expect(left); !status.ok()) return status;
      if (first || sent < gives) {
        const size_t length = std::min(each * width, gives - sent);
        if (Status status = messages.send(right, {out + there.begin * width + sent, length}, gives);
            !status.ok())
          return status;
        sent += length;
      }
      if (first || taken < takes) {
        const size_t length = std::min(each * width, takes - taken);
        const auto chunk = messages.receive(left, length, takes);
        if (!chunk) return chunk.status();
        if (length != 0) use(out + here.begin * width + taken, chunk->data(), length);
        taken += length;
      }
      first = false;
    }
    return {};
  };
  const int rank = team.rank();
  for (int s = 0; s < size - 1; ++s) {
    const bool last = s == size - 2;
    if (Status status = step(rank - s, rank - s - 1,
                             [&](std::byte* mine, const std::byte* theirs, size_t length) {
                               combine(messages, theirs, mine, mine, length / width, last);
                             });
        !status.ok())
      return status;
  }
  for (int s = 0; s < size - 1; ++s)
    if (Status status = step(rank + 1 - s, rank - s,
                             [&](std::byte* mine, const std::byte* theirs, size_t length) {
                               std::memcpy(mine, theirs, length);
                             });
        !status.ok())
      return status;
  return messages.finish();
}

}  // namespace tw::collective::steps
