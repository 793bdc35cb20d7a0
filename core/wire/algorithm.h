// SPDX-License-Identifier: Apache-2.0
// How an all-reduce over messages goes: as ranks number it for each other, and as settings, tables
// and counters name it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace tw::wire {

// kNone: in a way of its own, or no all-reduce.
enum class Algorithm : uint8_t {
  kNone,
  kDirect,
  kPairwise,
  kRing,
  kRecursiveDoubling,
  kHalvingDoubling,
};
inline constexpr const char* kAlgorithmNames[] = {
    "none", "direct", "pairwise", "ring", "recursive_doubling", "halving_doubling"};
inline constexpr size_t kAlgorithms = std::size(kAlgorithmNames);
static_assert(kAlgorithms == static_cast<size_t>(Algorithm::kHalvingDoubling) + 1);

constexpr const char* name_of(Algorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}

}  // namespace tw::wire
