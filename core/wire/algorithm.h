// SPDX-License-Identifier: Apache-2.0
// How an operation over messages goes: as ranks number it for each other, and as settings, tables
// and counters name it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace tw::wire {

// kNone: in the one way that the operation has. Up to kHalvingDoubling: those of all-reduces.
enum class Algorithm : uint8_t {
  kNone,
  kDirect,
  kPairwise,
  kRing,
  kRecursiveDoubling,
  kHalvingDoubling,
  kTree,
  kScatterAllGather,
};
inline constexpr const char* kAlgorithmNames[] = {"none",
                                                  "direct",
                                                  "pairwise",
                                                  "ring",
                                                  "recursive_doubling",
                                                  "halving_doubling",
                                                  "tree",
                                                  "scatter_all_gather"};
inline constexpr size_t kAlgorithms = std::size(kAlgorithmNames);
static_assert(kAlgorithms == static_cast<size_t>(Algorithm::kScatterAllGather) + 1);

constexpr const char* name_of(Algorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}

// What all-reduces can be told to go by.
inline constexpr std::span kAllReduceNames =
    std::span(kAlgorithmNames).subspan<1, static_cast<size_t>(Algorithm::kHalvingDoubling)>();
constexpr bool reduces_all(Algorithm algorithm) {
  return algorithm >= Algorithm::kDirect && algorithm <= Algorithm::kHalvingDoubling;
}

}  // namespace tw::wire
