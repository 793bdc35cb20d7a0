// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

PowerOfTwo::PowerOfTwo(const Team& team)
    : size(static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size())))),
      extra(team.size() - size),
      place(team.rank() >= 2 * extra ? team.rank() - extra
            : team.rank() % 2 == 0   ? team.rank() / 2
                                     : -1) {}

void combine(const Messages& messages, const std::byte* lower, const std::byte* upper,
             std::byte* result, size_t count, bool last) {
  const CollectiveCall& call = messages.part();
  const bool sum = call.op == ReduceOp::kAverage && !last;
  const std::array<const std::byte*, 2> both{lower, upper};
  tw::reduce(call.type, sum ? ReduceOp::kSum : call.op, both, result, count,
             static_cast<unsigned>(messages.team().size()));
}

}  // namespace tw::collective::steps
