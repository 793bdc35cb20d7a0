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
// bounds what a receiver holds that nobody has claimed.
inline constexpr size_t kMostEdges = 8192;
inline constexpr size_t kMostPlannedBytes = 64 << 20;
inline constexpr size_t kMostSteps = 4;

// Whether a rendezvous has the key once in a step: those of loops name the iteration.
inline bool outside_loops(absl::string_view key) { return absl::EndsWith(key, ";0:0"); }

}  // namespace tensorwire
