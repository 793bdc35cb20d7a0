// SPDX-License-Identifier: Apache-2.0
// The protocol steps of one link, for whoever wants to see what became of a message. Off, a step
// costs one load.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace tw {

enum class TraceStep : uint8_t {
  kMessage,   // a message is announced; segment: how many it has; bytes: what the frame carries
  kMap,       // a segment that the receiver maps; id: its lease
  kReturn,    // a segment that the receiver had lent, by `id`
  kEager,     // small segments from `segment` on
  kData,      // a chunk that is pushed
  kRts,       // a chunk may be read; id: the rendezvous
  kRead,      // its read begins
  kReadDone,  // its read has ended
  kFin,       // a rendezvous or a lease, `id`, is given back
  kCredit,    // bytes granted to a stream
  kAbort,     // a message is given up
  kGoAway,    // no new calls
  kSend,      // the transport takes bytes at once: a system call, a write to the ring, a SEND
};
inline constexpr size_t kTraceSteps = 13;
const char* name_of(TraceStep step);

struct TraceEvent {
  Nanos time = 0;
  TraceStep step = TraceStep::kMessage;
  bool sent =
      false;  // by this end; else received. A read is its reader's: begun sent, done received
  uint32_t segment = 0;
  uint64_t stream = 0, message = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
};

// Thread-safe. Its lock is innermost: it may be used with any other held.
class Trace {
 public:
  // Forgets what was noted, and keeps the last `keep` events from now on; 0: off.
  void keep(size_t keep);
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void note(bool sent, TraceStep step, uint64_t stream, uint64_t message, uint32_t segment,
            uint64_t bytes, uint64_t id = 0) {
    if (on()) [[unlikely]]
      add({0, step, sent, segment, stream, message, bytes, id});
  }

  struct Sum {
    uint64_t count = 0, bytes = 0;
  };
  struct Record {
    std::vector<TraceEvent> events;  // the last ones, oldest first
    uint64_t total = 0;              // of which these are what is kept
    // Of all since keep(): what was received, what was sent.
    std::array<std::array<Sum, kTraceSteps>, 2> sums{};
  };
  Record record() const;

 private:
  [[gnu::cold]] void add(TraceEvent event);

  std::atomic<bool> on_{false};
  mutable Mutex mutex_;  // guards what follows
  size_t capacity_ TW_GUARDED_BY(mutex_) = 0;
  // Grows to capacity_; then total_ modulo it is the oldest.
  std::vector<TraceEvent> ring_ TW_GUARDED_BY(mutex_);
  uint64_t total_ TW_GUARDED_BY(mutex_) = 0;
  std::array<std::array<Sum, kTraceSteps>, 2> sums_ TW_GUARDED_BY(mutex_){};
};

}  // namespace tw
