// SPDX-License-Identifier: Apache-2.0
#include "engine/audit.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace tw {
namespace {

bool has_lines(Incident incident) { return incident != Incident::kHandshakeLeft; }

}  // namespace

IncidentName name_of(Incident incident) {
  static constexpr IncidentName kNames[] = {
      {"handshake", "left"},    {"handshake", "silent"},  {"handshake", "late"},
      {"handshake", "garbage"}, {"handshake", "version"}, {"handshake", "session"},
      {"handshake", "proof"},   {"handshake", "user"},    {"handshake", "setup"},
      {"eviction", "stranger"}, {"eviction", "session"},  {"budget", "descriptors"},
      {"protocol", "broken"},   {"budget", "link"},       {"budget", "stalled"},
      {"budget", "arena"},      {"budget", "mapping"},    {"host", "silent"}};
  static_assert(std::size(kNames) == kIncidents);
  return kNames[static_cast<size_t>(incident)];
}

void Audit::note(Incident incident, std::string_view peer, std::string_view what,
                 Nanos at) noexcept {
  Entry& entry = entries_[static_cast<size_t>(incident)];
  entry.count.fetch_add(1, std::memory_order_relaxed);
  if (!has_lines(incident)) return;
  try {
    {
      const MutexLock lock(mutex_);
      if (queue_.size() < kMostQueued && may_tell(static_cast<size_t>(incident), at)) {
        queue_.push_back({incident, std::string(peer), std::string(what), entry.untold});
        entry.untold = 0;
      } else {
        ++entry.untold;
        entry.peer = peer;
        entry.what = what;
      }
    }
    changed_.notify();
  } catch (const std::bad_alloc&) {
    // It is counted.
  }
}

// Mutex held. A line moves the time at which the burst is whole again by one pace.
bool Audit::may_tell(size_t incident, Nanos at) {
  Entry& entry = entries_[incident];
  const Nanos full_at = std::max(entry.full_at, at) + kPace;
  if (full_at > at + burst_of(static_cast<Incident>(incident)) * kPace) return false;
  entry.full_at = full_at;
  return true;
}

// Mutex held.
Nanos Audit::take_untold(Line& line, Nanos at) {
  Nanos first = kForever;
  for (size_t i = 0; i < kIncidents; ++i) {
    Entry& entry = entries_[i];
    if (entry.untold == 0) continue;
    if (!closed_ && !may_tell(i, at)) {
      const int others = burst_of(static_cast<Incident>(i)) - 1;
      first = std::min(first, entry.full_at - others * kPace);
      continue;
    }
    line = {static_cast<Incident>(i), std::move(entry.peer), std::move(entry.what),
            std::exchange(entry.untold, 0) - 1};
    return 0;
  }
  return first;
}

Waited Audit::next(Line& line, Nanos deadline) {
  for (;;) {
    const uint32_t seen = changed_.sequence();
    Nanos due;
    {
      const MutexLock lock(mutex_);
      if (!queue_.empty()) {
        line = std::move(queue_.front());
        queue_.pop_front();
        return Waited::kDone;
      }
      due = take_untold(line, now());
      if (due == 0) return Waited::kDone;
      if (closed_) return Waited::kClosed;
    }
    const FutexWait woken = changed_.wait(seen, std::min(due, deadline));
    if (woken == FutexWait::kSignal) return Waited::kSignal;
    if (woken == FutexWait::kTimeout && now() >= deadline) return Waited::kTimeout;
  }
}

void Audit::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  changed_.notify();
}

}  // namespace tw
