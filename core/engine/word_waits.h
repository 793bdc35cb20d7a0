// SPDX-License-Identifier: Apache-2.0
// Who waits for words of this process's memory to change, whichever link changes them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/futex.h"
#include "memory/shared_memory.h"

namespace tw {

// After a change of memory that processes share.
inline void tell(SharedWords& words) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (words.sleepers.load(std::memory_order_relaxed) == 0) return;
  words.changes.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(words.changes, INT_MAX, FutexScope::kShared);
}

// Sleeps until it is told of a change in one of these memories, kMaxFutexWords at most, or about
// that long; a peer that writes to the words may have it miss one.
template <class Done>
FutexWait sleep(std::span<SharedWords* const> memories, Done&& done, Nanos deadline) {
  std::array<FutexWord, kMaxFutexWords> words;
  for (size_t i = 0; i < memories.size(); ++i) {
    SharedWords& memory = *memories[i];
    words[i] = {memory.changes, memory.changes.load(std::memory_order_seq_cst)};
    memory.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  const FutexWait result =
      done() ? FutexWait::kWoken : futex_wait_any({words.data(), memories.size()}, deadline);
  for (SharedWords* const memory : memories)
    memory->sleepers.fetch_sub(1, std::memory_order_relaxed);
  return result;
}

class WordWaits {
 public:
  class Waiter {
   public:
    // On any thread: look again. Must neither block nor wait for a word.
    virtual void look_again() = 0;

   protected:
    ~Waiter() = default;
  };

  // Told of changes for as long as this lives. A look at the word afterwards misses none.
  class Entry {
   public:
    Entry(WordWaits& waits, Waiter& waiter) : waits_(waits), waiter_(waiter) {
      const MutexLock lock(waits_.mutex_);
      waits_.waiters_.push_back(&waiter_);
      waits_.count_.fetch_add(1, std::memory_order_seq_cst);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() {
      const MutexLock lock(waits_.mutex_);
      waits_.waiters_.erase(std::ranges::find(waits_.waiters_, &waiter_));
      waits_.count_.fetch_sub(1, std::memory_order_relaxed);
    }

   private:
    WordWaits& waits_;
    Waiter& waiter_;
  };

  // After a change. Costs a fence while nobody waits.
  void tell() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (count_.load(std::memory_order_relaxed) == 0) return;
    const MutexLock lock(mutex_);
    for (Waiter* const waiter : waiters_) waiter->look_again();
  }

 private:
  std::atomic<int> count_{0};
  Mutex mutex_;
  std::vector<Waiter*> waiters_ TW_GUARDED_BY(mutex_);  // one may wait more than once
};

}  // namespace tw
