// SPDX-License-Identifier: Apache-2.0
// Waits of who blocks on something that hands out one thing after the other, until it is closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/audit.h"
#include "engine/event_queue.h"
#include "engine/waiting.h"

namespace tw {

// kClosed: nothing comes any more.
enum class Awaited : uint8_t { kThere, kTimeout, kInterrupted, kClosed };

// Until look(deadline) says something else than kTimeout and kSignal: what comes next is there, or
// it is kClosed.
template <class Look>
Awaited await_next(const Wait& wait, Look&& look) {
  bool closed = false;
  const Ended ended = wait_through(wait, [&](Nanos until) {
    const auto next = look(until);
    using Next = decltype(next);
    closed = next == Next::kClosed;
    if (next == Next::kTimeout) return Waited::kTimeout;
    return next == Next::kSignal ? Waited::kSignal : Waited::kDone;
  });
  if (ended == Ended::kTimeout) return Awaited::kTimeout;
  if (ended == Ended::kInterrupted) return Awaited::kInterrupted;
  return closed ? Awaited::kClosed : Awaited::kThere;
}

// As EventQueue::take(). `count` is 0 unless tokens are there.
inline Awaited await_tokens(EventQueue& queue, std::span<uint64_t> room, size_t& count,
                            const Wait& wait) {
  count = 0;
  return await_next(wait, [&](Nanos until) { return queue.take(room, count, until); });
}

// As Audit::next().
inline Awaited await_line(Audit& audit, Audit::Line& line, const Wait& wait) {
  return await_next(wait, [&](Nanos until) { return audit.next(line, until); });
}

}  // namespace tw
