// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"
#include "collective/steps/send_receive.h"

namespace tw::collective::steps {

Status ring(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type);
  const int size = team.size(), right = team.after(1), left = team.before(1);
  if (in != out && call.count != 0) std::memcpy(out, in, call.bytes());
  const auto part = [&](int i) {
    return part_of(call.count, width, (i % size + size) % size, size);
  };
  // One step: part `gone` goes to the right, part `come` comes from the left.
  const auto step = [&](int gone, int come, auto&& use) {
    const Part there = part(gone), here = part(come);
    return send_receive(
        messages, 0, Leg{right, there.size() * width}, Leg{left, here.size() * width},
        [&](size_t from, size_t) { return out + there.begin * width + from; },
        [&](size_t from, const std::byte* theirs, size_t length) {
          use(out + here.begin * width + from, theirs, length);
        });
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
