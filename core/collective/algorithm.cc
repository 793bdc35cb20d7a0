// SPDX-License-Identifier: Apache-2.0
#include "collective/algorithm.h"

namespace tw::collective {
namespace {

constexpr size_t kLittle = 16 << 10, kMuch = 64 << 10, kMedium = 512 << 10;
constexpr int kFew = 8, kMany = 32;

bool rounds_once(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kPairwise;
}

Algorithm of_all_reduce(size_t bytes, int ranks, bool once) {
  if (bytes <= kLittle && (ranks <= kFew || once)) return Algorithm::kDirect;
  if (once) return Algorithm::kPairwise;
  if (bytes <= kLittle) return Algorithm::kRecursiveDoubling;
  if (ranks <= kFew) return Algorithm::kPairwise;
  if (bytes <= kMedium) return Algorithm::kHalvingDoubling;
  return ranks <= kMany ? Algorithm::kPairwise : Algorithm::kRing;
}

// Little data is a matter of steps, much of it one of bytes. Each rank speaks to all others in
// kDirect and kPairwise, which is cheap while they are few.
Algorithm usual(const CollectiveCall& call, int ranks) {
  const size_t bytes = call.bytes();
  const bool once = rounds(call.type);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return of_all_reduce(bytes, ranks, once);
    case CollectiveKind::kReduce:
      return bytes <= kLittle ? Algorithm::kDirect : Algorithm::kPairwise;
    case CollectiveKind::kBroadcast:
      // Two ranks would do the same either way.
      return ranks > 2 && bytes / static_cast<size_t>(ranks - 1) >= kLittle
                 ? Algorithm::kScatterAllGather
                 : Algorithm::kTree;
    case CollectiveKind::kReduceScatter:
      if (once) return Algorithm::kDirect;
      [[fallthrough]];
    case CollectiveKind::kAllGather:
      return bytes > kMuch && ranks > kMany ? Algorithm::kRing : Algorithm::kDirect;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      break;
  }
  return Algorithm::kNone;
}

}  // namespace

Algorithm choose_algorithm(const CollectiveCall& call, int ranks, Algorithm forced,
                           const Ways& tuned) {
  Algorithm wanted = call.kind == CollectiveKind::kAllReduce ? forced : Algorithm::kNone;
  if (wanted == Algorithm::kNone)
    if (const auto way = tuned.of(call.kind, call.bytes())) wanted = algorithm_of(*way);
  const bool allowed = !reduces(call.kind) || !rounds(call.type) || rounds_once(wanted);
  return goes_by(call.kind, wanted) && allowed ? wanted : usual(call, ranks);
}

}  // namespace tw::collective
