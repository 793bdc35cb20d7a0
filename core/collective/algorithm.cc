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

Way way_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNone:
      break;
    case Algorithm::kDirect:
      return Way::kDirect;
    case Algorithm::kPairwise:
      return Way::kPairwise;
    case Algorithm::kRing:
      return Way::kRing;
    case Algorithm::kRecursiveDoubling:
      return Way::kRecursiveDoubling;
    case Algorithm::kHalvingDoubling:
      return Way::kHalvingDoubling;
  }
  return Way::kMessages;
}

namespace {

Algorithm algorithm_of(std::optional<Way> way) {
  for (size_t i = 1; way && i < kAlgorithms; ++i)
    if (way_of(static_cast<Algorithm>(i)) == *way) return static_cast<Algorithm>(i);
  return Algorithm::kNone;
}

}  // namespace

// Little data is a matter of steps, much of it one of bytes. Each rank speaks to all others in
// kDirect and kPairwise, which is cheap while they are few.
Algorithm choose_algorithm(const CollectiveCall& call, int ranks, Algorithm forced,
                           const Ways& tuned) {
  constexpr size_t kLittle = 16 << 10, kMedium = 512 << 10;
  constexpr int kFew = 8, kMany = 32;
  const size_t bytes = call.bytes();
  const Algorithm wanted = forced != Algorithm::kNone
                               ? forced
                               : algorithm_of(tuned.of(CollectiveKind::kAllReduce, bytes));
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
