// SPDX-License-Identifier: Apache-2.0
// The futex operations the engine needs. `shared` words live in memory that processes share.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <span>

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

// One of several words that are waited for. The kernel's struct futex_waitv, which the headers that
// wheels are built with lack.
struct FutexWord {
  FutexWord() = default;
  FutexWord(std::atomic<uint32_t>& at, uint32_t expects)
      : expected(expects), word(reinterpret_cast<uintptr_t>(&at)) {}

  uint64_t expected = 0;
  uint64_t word = 0;
  uint32_t flags = 2;  // of 32 bits, in memory that processes share
  uint32_t reserved = 0;
};
static_assert(sizeof(FutexWord) == 24);

inline constexpr size_t kMaxFutexWords = 128;

// Sleeps while each word, of kMaxFutexWords at most, is what is expected of it; kWoken may be
// spurious. Linux before 5.16, and sandboxes, cannot do that: there it sleeps for a millisecond at
// most, unless the first word changes.
inline FutexWait futex_wait_any(std::span<const FutexWord> words, Nanos deadline) {
  constexpr long kFutexWaitv = 449;  // on all architectures
  if (words.size() > 1) {
    const timespec limit{static_cast<time_t>(deadline / kSecond),
                         static_cast<long>(deadline % kSecond)};
    if (syscall(kFutexWaitv, words.data(), words.size(), 0, deadline == kForever ? nullptr : &limit,
                CLOCK_MONOTONIC) >= 0)
      return FutexWait::kWoken;
    if (errno == ETIMEDOUT) return FutexWait::kTimeout;
    if (errno == EINTR) return FutexWait::kSignal;
    if (errno != ENOSYS && errno != EPERM) return FutexWait::kWoken;
    deadline = std::min(deadline, now() + kMillisecond);
  }
  return futex_wait(*reinterpret_cast<std::atomic<uint32_t>*>(words.front().word),
                    static_cast<uint32_t>(words.front().expected), deadline, FutexScope::kShared);
}

}  // namespace tw
