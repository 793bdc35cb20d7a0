// SPDX-License-Identifier: Apache-2.0
#include "collective/algorithm.h"

namespace tw::collective {

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNone:
      return "none";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRecursiveDoubling:
      return "recursive_doubling";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
  }
  return "unknown";
}

// Little data is a matter of steps, much of it one of bytes. Each rank speaks to all others in
// kDirect and kPairwise, which is cheap while they are few.
Algorithm choose_algorithm(const CollectiveCall& call, int ranks, Algorithm forced) {
  constexpr size_t kLittle = 16 << 10, kMedium = 512 << 10;
  constexpr int kFew = 8, kMany = 32;
  const size_t bytes = call.bytes();
  const bool once = forced == Algorithm::kDirect || forced == Algorithm::kPairwise;
  if (forced != Algorithm::kNone && (once || !rounds(call.type))) return forced;
  if (bytes <= kLittle && (ranks <= kFew || rounds(call.type))) return Algorithm::kDirect;
  if (rounds(call.type)) return Algorithm::kPairwise;
  if (bytes <= kLittle) return Algorithm::kRecursiveDoubling;
  if (ranks <= kFew) return Algorithm::kPairwise;
  if (bytes <= kMedium) return Algorithm::kHalvingDoubling;
  return ranks <= kMany ? Algorithm::kPairwise : Algorithm::kRing;
}

}  // namespace tw::collective
