// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <algorithm>
#include <iterator>

namespace tw {

const char* name_of(TraceStep step) {
  static constexpr const char* kNames[kTraceSteps] = {
      "MESSAGE",   "MAP", "RETURN", "EAGER", "DATA",   "RTS", "READ",
      "READ_DONE", "FIN", "CREDIT", "ABORT", "GOAWAY", "SEND"};
  return kNames[static_cast<size_t>(step)];
}

void Trace::keep(size_t keep) {
  const MutexLock lock(mutex_);
  capacity_ = keep;
  ring_ = {};
  total_ = 0;
  sums_ = {};
  on_.store(keep != 0, std::memory_order_relaxed);
}

void Trace::add(TraceEvent event) {
  const MutexLock lock(mutex_);
  if (capacity_ == 0) return;
  event.time = now();  // under the lock, so that times rise
  Sum& sum = sums_[event.sent][static_cast<size_t>(event.step)];
  ++sum.count;
  sum.bytes += event.bytes;
  if (ring_.size() < capacity_)
    ring_.push_back(event);
  else
    ring_[total_ % capacity_] = event;
  ++total_;
}

Trace::Record Trace::record() const {
  Record record;
  const MutexLock lock(mutex_);
  record.total = total_;
  record.sums = sums_;
  const auto oldest =
      ring_.begin() + static_cast<std::ptrdiff_t>(
                          ring_.size() == capacity_ && capacity_ != 0 ? total_ % capacity_ : 0);
  record.events.reserve(ring_.size());
  std::copy(oldest, ring_.end(), std::back_inserter(record.events));
  std::copy(ring_.begin(), oldest, std::back_inserter(record.events));
  return record;
}

}  // namespace tw
