// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status recursive_doubling(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t bytes = call.bytes();
  const PowerOfTwo power(team);
  if (in != out && bytes != 0) std::memcpy(out, in, bytes);
  // What a partner has, in chunks, into `out`; `use` is given the place and the chunk.
  const auto swap = [&](int partner, bool gives, bool takes, int lane, auto&& use) -> Status {
    size_t at = 0;
    do {
      const size_t length = std::min(Messages::kChunk, bytes - at);
      if (takes)
        if (Status status = messages.expect(partner, lane); !status.ok()) return status;
      if (gives)
        if (Status status = messages.send(partner, {out + at, length}, bytes, lane); !status.ok())
          return status;
      if (takes) {
        const auto theirs = messages.receive(partner, length, bytes, lane);
        if (!theirs) return theirs.status();
        // What was sent is about to be written.
        if (Status status = messages.finish(); !status.ok()) return status;
        if (length != 0) use(out + at, theirs->data(), length);
      }
      at += length;
    } while (at < bytes);
    return {};
  };
  const size_t width = size_of(call.type);
  const auto copy = [](std::byte* mine, const std::byte* theirs, size_t length) {
    std::memcpy(mine, theirs, length);
  };
  if (power.place < 0) {
    const int partner = team.rank() - 1;
    if (Status status = swap(partner, true, false, 0, copy); !status.ok()) return status;
    if (Status status = messages.finish(); !status.ok()) return status;
    return swap(partner, false, true, 1, copy);
  }
  const bool helped = power.place < power.extra;
  if (helped)
    if (Status status = swap(team.rank() + 1, false, true, 0,
                             [&](std::byte* mine, const std::byte* theirs, size_t length) {
                               combine(messages, mine, theirs, mine, length / width, false);
                             });
        !status.ok())
      return status;
  for (int distance = 1; distance < power.size; distance *= 2) {
    const bool last = distance * 2 == power.size;
    const bool above = (power.place & distance) != 0;
    if (Status status = swap(power.rank_at(power.place ^ distance), true, true, 0,
                             [&](std::byte* mine, const std::byte* theirs, size_t length) {
                               combine(messages, above ? theirs : mine, above ? mine : theirs, mine,
                                       length / width, last);
                             });
        !status.ok())
      return status;
  }
  if (helped)
    if (Status status = swap(team.rank() + 1, true, false, 1, copy); !status.ok()) return status;
  return messages.finish();
}

}  // namespace tw::collective::steps
