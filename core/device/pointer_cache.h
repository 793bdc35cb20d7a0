// SPDX-License-Identifier: Apache-2.0
// Where pointers point to, with one question to the driver for each allocation of a device.
#pragma once

#include <map>

#include "base/mutex.h"
#include "device/driver.h"

namespace tw::device {

// Thread-safe. Right as long as each allocation that it may have seen is forgotten when it is
// freed; the driver does not tell.
class PointerCache {
 public:
  explicit PointerCache(Driver& driver) : driver_(driver) {}

  // Memory that the driver does not know is asked for anew each time: nobody tells when it goes.
  Result<Allocation> find(const void* pointer);
  // What lies in these bytes has been freed, or is about to be.
  void forget(const void* address, size_t bytes);

 private:
  void drop(uintptr_t begin, uintptr_t end) TW_REQUIRES(mutex_);

  Driver& driver_;
  Mutex mutex_;  // guards what follows; not held while the driver is asked
  std::map<uintptr_t, Allocation> known_ TW_GUARDED_BY(mutex_);  // by where they begin; apart
  // Grows when something is forgotten: an answer from before is not kept.
  uint64_t generation_ TW_GUARDED_BY(mutex_) = 0;
};

}  // namespace tw::device
