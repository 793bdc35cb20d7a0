// SPDX-License-Identifier: Apache-2.0
// The two futex operations the engine needs. `shared` words live in memory that processes share.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "base/clock.h"

namespace tw {

enum class FutexScope { kPrivate, kShared };
enum class FutexWait { kWoken, kTimeout, kSignal };

// Sleeps while *word == expected; kWoken may be spurious.
inline FutexWait futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Nanos deadline,
                            FutexScope scope = FutexScope::kPrivate) {
  timespec limit = until(deadline);
  const int op = scope == FutexScope::kPrivate ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
  if (syscall(SYS_futex, &word, op, expected, deadline == kForever ? nullptr : &limit, nullptr,
              0) == 0)
    return FutexWait::kWoken;
  if (errno == ETIMEDOUT) return FutexWait::kTimeout;
  return errno == EINTR ? FutexWait::kSignal : FutexWait::kWoken;
}

inline void futex_wake(std::atomic<uint32_t>& word, int count = INT_MAX,
                       FutexScope scope = FutexScope::kPrivate) {
  const int op = scope == FutexScope::kPrivate ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE;
  syscall(SYS_futex, &word, op, count, nullptr, nullptr, 0);
}

}  // namespace tw
