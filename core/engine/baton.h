// SPDX-License-Identifier: Apache-2.0
// Who drives a link. One thread at a time holds the baton and moves the link's bytes; the others
// sleep on their own Event and are woken either because what they wait for has happened or because
// the baton has become free. Clang checks who holds it (base/mutex.h), within a function at least.
#pragma once

#include <atomic>

#include "base/mutex.h"
#include "engine/event.h"

namespace tw {

class TW_CAPABILITY("baton") Baton {
 public:
  // One thread's place in the queue of those who wait while somebody else drives.
  struct Waiter {
    explicit Waiter(Event& e) : event(e) {}
    Event& event;
    Waiter* next = nullptr;
    Waiter* previous = nullptr;
  };

  bool try_take() TW_TRY_ACQUIRE(true) {
    // seq_cst: after enter(), see free().
    return !taken_.load(std::memory_order_seq_cst) &&
           !taken_.exchange(true, std::memory_order_seq_cst);
  }

  bool taken() const { return taken_.load(std::memory_order_seq_cst); }

  // For whoever has seen that there is something to do, but cannot wait: when the baton is taken,
  // its holder is told by free().
  bool take_or_flag() TW_TRY_ACQUIRE(true) {
    if (try_take()) return true;
    flagged_.store(true, std::memory_order_seq_cst);
    // Freed in between: either the holder has seen the flag, or this exchange gets the baton.
    return !taken_.exchange(true, std::memory_order_seq_cst);
  }

  // Frees the baton and wakes one waiter to take it, if anybody waits. False: it is held() still,
  // which clang knows no word for.
  bool pass_to_waiter() TW_RELEASE() {
    if (!waited_for_.load(std::memory_order_relaxed)) return false;
    const MutexLock lock(mutex_);
    if (!first_) return false;
    taken_.store(false, std::memory_order_seq_cst);
    first_->event.notify();
    return true;
  }

  // Frees the baton. True: somebody came in vain meanwhile, so that the link has to be looked at
  // again.
  bool free() TW_RELEASE() {
    taken_.store(false, std::memory_order_seq_cst);
    // A waiter that queued up too late for pass_to_waiter() and too early to find the baton free.
    // It says that it waits, and then looks whether the baton is taken; here it is the other way
    // round: one of the two sees the other.
    if (waited_for_.load(std::memory_order_seq_cst)) {
      const MutexLock lock(mutex_);
      if (first_) first_->event.notify();
    }
    return flagged_.exchange(false, std::memory_order_seq_cst);
  }

  // In a lambda, or a function that a port is called by, which clang cannot follow.
  void held() const TW_ASSERT_HELD() {}

  void enter(Waiter& waiter) {
    const MutexLock lock(mutex_);
    waiter.next = first_;
    waiter.previous = nullptr;  // it may have been in the queue before
    if (first_) first_->previous = &waiter;
    first_ = &waiter;
    waited_for_.store(true, std::memory_order_seq_cst);
  }

  void leave(Waiter& waiter) {
    const MutexLock lock(mutex_);
    (waiter.previous ? waiter.previous->next : first_) = waiter.next;
    if (waiter.next) waiter.next->previous = waiter.previous;
    waited_for_.store(first_ != nullptr, std::memory_order_seq_cst);
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<bool> flagged_{false};
  Mutex mutex_;  // guards the queue
  Waiter* first_ TW_GUARDED_BY(mutex_) = nullptr;
  std::atomic<bool> waited_for_{false};  // somebody is in the queue; read without the lock, too
};

}  // namespace tw
