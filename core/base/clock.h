// SPDX-License-Identifier: Apache-2.0
// Monotonic time in nanoseconds, and deadlines on it.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace tw {

using Nanos = int64_t;

inline constexpr Nanos kForever = std::numeric_limits<Nanos>::max();
inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

inline Nanos now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<Nanos>(t.tv_sec) * kSecond + t.tv_nsec;
}

// The point in time `timeout` from now; kForever stays kForever.
inline Nanos deadline_after(Nanos timeout) {
  if (timeout == kForever) return kForever;
  const Nanos start = now();
  return timeout > kForever - start ? kForever : start + timeout;
}

// Relative time for a system call; zero when the deadline has passed.
inline timespec until(Nanos deadline) {
  const Nanos left = deadline - now();
  if (left <= 0) return {0, 0};
  return {static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
}

}  // namespace tw
