// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collective/steps/algorithms.h"
#include "collective/steps/send_receive.h"

namespace tw::collective::steps {

Status halving_doubling(Messages& messages, const std::byte* in, std::byte* out) {
  const Team& team = messages.team();
  const CollectiveCall& call = messages.part();
  const size_t width = size_of(call.type);
  const PowerOfTwo power(team);
  if (in != out && call.count != 0) std::memcpy(out, in, call.bytes());
  // With one partner: `gone` leaves, `come` comes; either may be null.
  const auto trade = [&](int partner, int lane, const Part* gone, const Part* come, auto&& use) {
    const auto leg = [&](const Part* part) {
      return part ? std::optional(Leg{partner, part->size() * width}) : std::nullopt;
    };
    return send_receive(
        messages, lane, leg(gone), leg(come),
        [&](size_t from, size_t) { return out + gone->begin * width + from; },
        [&](size_t from, const std::byte* theirs, size_t length) {
          use(out + come->begin * width + from, theirs, length / width);
        });
  };
  const auto copy = [&](std::byte* mine, const std::byte* theirs, size_t count) {
    std::memcpy(mine, theirs, count * width);
  };
  const Part whole{0, call.count};
  if (power.place < 0) {
    const int partner = team.rank() - 1;
    if (Status status = trade(partner, 0, &whole, nullptr, copy); !status.ok()) return status;
    // The results come to where the array is sent from.
    if (Status status = messages.finish(); !status.ok()) return status;
    return trade(partner, 1, nullptr, &whole, copy);
  }
  const bool helped = power.place < power.extra;
  if (helped)
    if (Status status = trade(team.rank() + 1, 0, nullptr, &whole,
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
    if (Status status = trade(power.rank_at(power.place ^ distance), 0, &leaves, &keeps,
                              [&](std::byte* mine, const std::byte* theirs, size_t count) {
                                combine(messages, above ? theirs : mine, above ? mine : theirs,
                                        mine, count, distance == 1);
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
    if (Status status = trade(power.rank_at(power.place ^ distance), 1, &has, &misses, copy);
        !status.ok())
      return status;
  }
  if (helped)
    if (Status status = trade(team.rank() + 1, 1, &whole, nullptr, copy); !status.ok())
      return status;
  return messages.finish();
}

}  // namespace tw::collective::steps
