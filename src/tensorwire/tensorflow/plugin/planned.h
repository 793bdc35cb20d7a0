// SPDX-License-Identifier: Apache-2.0
// Planned transfers: a tensor that a peer has received by calls in two steps, each time of the same
// type and shape, is sent to it as soon as it is there in all later steps, without a call. Who
// receives decides what is planned, who sends decides for each step and tensor whether it is pushed
// or asked for, and never both. This is what both ends keep to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tensorwire {

// A call costs little beside the transfer of a larger one.
inline constexpr int64_t kLargestPlanned = 1 << 20;
// What one peer may have planned, and in how many steps at a time. The product of the last two
// is what a receiver holds at most that nobody has claimed.
inline constexpr size_t kMostEdges = 8192;
inline constexpr size_t kMostPlannedBytes = 64 << 20;
inline constexpr size_t kMostSteps = 4;
inline constexpr size_t kMostHeld = kMostSteps * kMostPlannedBytes;
// Names are kept as long as an edge is planned, and are no part of its bytes.
inline constexpr size_t kLongestKey = 4096;

// Whether a rendezvous has the key once in a step (those of loops name the iteration), and it is
// not too long.
inline bool can_be_planned(absl::string_view key) {
  return key.size() <= kLongestKey && absl::EndsWith(key, ";0:0");
}

}  // namespace tensorwire
