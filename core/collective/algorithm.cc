// SPDX-License-Identifier: Apache-2.0
#include "collective/algorithm.h"

namespace tw::collective {

// Little data is a matter of steps, much of it one of bytes. Each rank speaks to all others in
// kDirect and kPairwise, which is cheap while they are few.
Algorithm choose_algorithm(const CollectiveCall& call, int ranks, Algorithm forced,
                           const Ways& tuned) {
  constexpr size_t kLittle = 16 << 10, kMedium = 512 << 10;
  constexpr int kFew = 8, kMany = 32;
  const size_t bytes = call.bytes();
  Algorithm wanted = forced;
  if (const auto way = tuned.of(CollectiveKind::kAllReduce, bytes);
      way && forced == Algorithm::kNone)
    wanted = algorithm_of(*way);
  const bool once = wanted == Algorithm::kDirect || wanted == Algorithm::kPairwise;
  if (wanted != Algorithm::kNone && (once || !rounds(call.type))) return wanted;
  if (bytes <= kLittle && (ranks <= kFew || rounds(call.type))) return Algorithm::kDirect;
  if (rounds(call.type)) return Algorithm::kPairwise;
  if (bytes <= kLittle) return Algorithm::kRecursiveDoubling;
  if (ranks <= kFew) return Algorithm::kPairwise;
  if (bytes <= kMedium) return Algorithm::kHalvingDoubling;
  return ranks <= kMany ? Algorithm::kPairwise : Algorithm::kRing;
}

}  // namespace tw::collective
