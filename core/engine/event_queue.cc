// SPDX-License-Identifier: Apache-2.0
#include "engine/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tw {

Result<int> EventQueue::descriptor() {
  const MutexLock lock(mutex_);
  if (!descriptor_) {
    Fd made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made)
      return errno_status(Code::kResourceExhausted, "no descriptor for a queue of events", errno);
    descriptor_ = std::move(made);
    if (!tokens_.empty() || closed_) set_signal();
  }
  return descriptor_.get();
}

Waited EventQueue::take(std::span<uint64_t> room, size_t& count, Nanos deadline) {
  for (;;) {
    const uint32_t seen = event_.sequence();
    {
      const MutexLock lock(mutex_);
      if (!tokens_.empty()) {
        count = std::min(room.size(), tokens_.size());
        const auto end = tokens_.begin() + static_cast<ptrdiff_t>(count);
        std::copy(tokens_.begin(), end, room.begin());
        tokens_.erase(tokens_.begin(), end);
        if (signalled_ && tokens_.empty() && !closed_) clear_signal();
        return Waited::kDone;
      }
      if (closed_) return Waited::kClosed;
    }
    switch (event_.wait(seen, deadline)) {
      case FutexWait::kWoken:
        break;
      case FutexWait::kTimeout:
        return Waited::kTimeout;
      case FutexWait::kSignal:
        return Waited::kSignal;
    }
  }
}

void EventQueue::make_room() {
  const size_t needed = tokens_.size() + promised_ + 1;
  if (needed > tokens_.capacity()) tokens_.reserve(std::max(needed, 2 * tokens_.capacity()));
}

// Neither can fail: the counter is 0 or 1.
void EventQueue::set_signal() {
  signalled_ = true;
  const uint64_t one = 1;
  (void)!::write(descriptor_.get(), &one, sizeof one);
}

void EventQueue::clear_signal() {
  signalled_ = false;
  uint64_t one;
  (void)!::read(descriptor_.get(), &one, sizeof one);
}

}  // namespace tw
