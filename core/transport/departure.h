// SPDX-License-Identifier: Apache-2.0
// That the other end of a transport has gone, and why.
#pragma once

#include <atomic>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace tw {

// Thread-safe. What is told first is why.
class Departure {
 public:
  void tell(Status why) {
    {
      const MutexLock lock(mutex_);
      if (why_.ok()) why_ = std::move(why);
    }
    told_.store(true, std::memory_order_release);
  }
  bool told() const { return told_.load(std::memory_order_acquire); }
  Status why() const {
    const MutexLock lock(mutex_);
    return why_;
  }

 private:
  std::atomic<bool> told_{false};
  mutable Mutex mutex_;
  Status why_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw
