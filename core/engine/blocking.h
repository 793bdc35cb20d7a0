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

// As EventQueue::take(). `count` is 0 unless tokens are there.
inline Ended await_tokens(EventQueue& queue, std::span<uint64_t> room, size_t& count,
                          const Wait& wait) {
  count = 0;
  return wait_through(wait, [&](Nanos until) { return queue.take(room, count, until); });
}

// As Audit::next().
inline Ended await_line(Audit& audit, Audit::Line& line, const Wait& wait) {
  return wait_through(wait, [&](Nanos until) { return audit.next(line, until); });
}

}  // namespace tw
