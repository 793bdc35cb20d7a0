// SPDX-License-Identifier: Apache-2.0
// How often the operations of a group have gone which way.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collective/collective_call.h"
#include "wire/algorithm.h"

namespace tw::collective {

using wire::Algorithm;

enum class Way : uint8_t {
  kOneStep,   // within a host: all ranks read what each has published
  kStage,     // ... by chunks over the ranks' stages
  kInPlace,   // ... arrays are read where they lie
  kMessages,  // between all ranks, as there is but one way
  kDirect,    // ... by the algorithms of this name
  kPairwise,
  kRing,
  kRecursiveDoubling,
  kHalvingDoubling,
  kTree,
  kScatterAllGather,
  kTwoLevels,      // within hosts, and between them
  kDeviceStaged,   // of arrays on devices: through the host's memory, by pieces
  kDeviceInPlace,  // ... within a host: devices read each other's memory
};
inline constexpr size_t kWays = 14;
const char* name_of(Way way);

// Of an operation by this algorithm.
constexpr Way way_of(Algorithm algorithm) {
  return static_cast<Way>(static_cast<size_t>(Way::kMessages) + static_cast<size_t>(algorithm));
}
static_assert(way_of(Algorithm::kNone) == Way::kMessages &&
              way_of(Algorithm::kDirect) == Way::kDirect &&
              way_of(Algorithm::kScatterAllGather) == Way::kScatterAllGather);
// kNone: that of no algorithm.
constexpr Algorithm algorithm_of(Way way) {
  return way < Way::kDirect || way > Way::kScatterAllGather
             ? Algorithm::kNone
             : static_cast<Algorithm>(static_cast<size_t>(way) -
                                      static_cast<size_t>(Way::kMessages));
}

// Thread-safe.
class Tally {
 public:
  // `bytes`: that this rank gave, or was given.
  void add(CollectiveKind kind, Way way, uint64_t bytes) {
    Count& count = counts_[static_cast<size_t>(kind)][static_cast<size_t>(way)];
    count.operations.fetch_add(1, std::memory_order_relaxed);
    count.bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Of all groups of this process, those that have ended, too.
  static Tally& of_process();

  // visit(kind, way, operations, bytes), of what there was.
  template <class Visit>
  void each(Visit&& visit) const {
    for (size_t kind = 0; kind < kCollectiveKinds; ++kind)
      for (size_t way = 0; way < kWays; ++way)
        if (const uint64_t n = counts_[kind][way].operations.load(std::memory_order_relaxed))
          visit(static_cast<CollectiveKind>(kind), static_cast<Way>(way), n,
                counts_[kind][way].bytes.load(std::memory_order_relaxed));
  }

 private:
  struct Count {
    std::atomic<uint64_t> operations{0}, bytes{0};
  };
  std::array<std::array<Count, kWays>, kCollectiveKinds> counts_;
};

}  // namespace tw::collective
