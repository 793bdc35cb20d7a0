// SPDX-License-Identifier: Apache-2.0
// Waits of who blocks on something: until it is there, a deadline, or an interruption.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace tw {

// What a wait has come to. kSignal: perhaps the caller has something to do for it. kClosed: nothing
// comes any more.
enum class Waited : uint8_t { kDone, kTimeout, kSignal, kClosed };

// How long a caller waits.
struct Wait {
  Nanos deadline = kForever;
  // Asked after each signal, and now and then in case one came just before the wait began; not 0
  // ends the wait. Null: signals change nothing.
  int (*interrupted)(void* context) = nullptr;
  void* context = nullptr;
};

enum class Ended : uint8_t { kDone, kTimeout, kInterrupted, kClosed };

// Repeats operation(deadline), which returns a Waited, through signals.
template <class Operation>
Ended wait_through(const Wait& wait, Operation&& operation) {
  constexpr Nanos kSlice = 250 * kMillisecond;
  for (;;) {
    const Nanos slice = wait.interrupted ? std::min(wait.deadline, now() + kSlice) : wait.deadline;
    const Waited waited = operation(slice);
    if (waited == Waited::kDone) return Ended::kDone;
    if (waited == Waited::kClosed) return Ended::kClosed;
    if (wait.interrupted && wait.interrupted(wait.context) != 0) return Ended::kInterrupted;
    if (waited == Waited::kTimeout && slice == wait.deadline) return Ended::kTimeout;
  }
}

}  // namespace tw
