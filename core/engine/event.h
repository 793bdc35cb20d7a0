// SPDX-License-Identifier: Apache-2.0
// What a thread waits on while another thread drives its link: a sequence number that grows with
// each thing that happens. Read the number, test the condition, then wait for the number to change.
#pragma once

#include "engine/futex.h"

namespace tw {

class Event {
 public:
  uint32_t sequence() const { return sequence_.load(std::memory_order_acquire); }

  void notify(int sleepers = INT_MAX) {
    sequence_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(sequence_, sleepers);
  }

  FutexWait wait(uint32_t seen, Nanos deadline) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const FutexWait result = futex_wait(sequence_, seen, deadline);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return result;
  }

  // A thread that drives its link waits there instead of here: notify() does not reach it. Whoever
  // is not the driver looks at driven() after notify(); the driver sets it before it looks at what
  // it waits for.
  void set_driven(bool driven) { driven_.store(driven, std::memory_order_seq_cst); }
  bool driven() const { return driven_.load(std::memory_order_seq_cst); }

 private:
  std::atomic<bool> driven_{false};
  std::atomic<uint32_t> sequence_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace tw
