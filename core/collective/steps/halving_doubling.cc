// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status halving_doubling(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type), each = Messages::kChunk / width;
  const PowerOfTwo power(team);
  if (in != out && call.count != 0) std::memcpy(out, in, call.bytes());
  // One pair: `gone` leaves, `come` comes; either may be null.
  const auto swap = [&](int partner, int lane, const Part* gone, const Part* come,
                        auto&& use) -> Status {
    const size_t gives = gone ? gone->size() : 0, takes = come ? come->size() : 0;
    size_t sent = 0, taken = 0;
    bool first = true;
    while (first || sent < gives || taken < takes) {
      const bool receives = come && (first || taken < takes);
      if (receives)
        if (Status status = messages.expect(partner, lane); !status.ok()) return status;
      if (gone && (first || sent < gives)) {
        const size_t count = std::min(each, gives - sent);
        if (Status status = messages.send(
                partner, {out + (gone->begin + sent) * width, count * width}, gives * width, lane);
            !status.ok())
          return status;
        sent += count;
      }
      if (receives) {
        const size_t count = std::min(each, takes - taken);
        const auto theirs = messages.receive(partner, count * width, takes * width, lane);
        if (!theirs) return theirs.status();
        if (count != 0) use(out + (come->begin + taken) * width, theirs->data(), count);
        taken += count;
      }
      first = false;
    }
    return {};
  };
  const auto copy = [&](std::byte* mine, const std::byte* theirs, size_t count) {
    std::memcpy(mine, theirs, count * width);
  };
  const Part whole{0, call.count};
  if (power.place < 0) {
    const int partner = team.rank() - 1;
    if (Status status = swap(partner, 0, &whole, nullptr, copy); !status.ok()) return status;
    // The results come to where the array is sent from.
    if (Status status = messages.finish(); !status.ok()) return status;
    return swap(partner, 1, nullptr, &whole, copy);
  }
  const bool helped = power.place < power.extra;
  if (helped)
    if (Status status = swap(team.rank() + 1, 0, nullptr, &whole,
                             [&](std::byte* mine, const std::byte* theirs, size_t count) {
                               combine(messages, mine, theirs, mine, count, false);
                             });
        !status.ok())
      return status;

  std::vector<Part> halves{whole};  // what this rank has had to reduce, ever less
  for (int distance = power.size / 2; distance != 0; distance /= 2) {
    const Part had = halves.back();
    const size_t half = part_of(had.size(), width, 0, 2).size();
    const Part low{had.begin, had.begin + half}, high{had.begin + half, had.end};
    const bool above = (power.place & distance) != 0;
    const Part keeps = above ? high : low, leaves = above ? low : high;
    if (Status status = swap(power.rank_at(power.place ^ distance), 0, &leaves, &keeps,
                             [&](std::byte* mine, const std::byte* theirs, size_t count) {
                               combine(messages, above ? theirs : mine, above ? mine : theirs, mine,
                                       count, distance == 1);
                             });
        !status.ok())
      return status;
    halves.push_back(keeps);
  }
  for (int distance = 1; distance < power.size; distance *= 2) {
    const Part has = halves.back();
    halves.pop_back();
    const Part had = halves.back();
    const Part misses =
        has.begin == had.begin ? Part{has.end, had.end} : Part{had.begin, has.begin};
    if (Status status = swap(power.rank_at(power.place ^ distance), 1, &has, &misses, copy);
        !status.ok())
      return status;
  }
  if (helped)
    if (Status status = swap(team.rank() + 1, 1, &whole, nullptr, copy); !status.ok())
      return status;
  return messages.finish();
}

}  // namespace tw::collective::steps
