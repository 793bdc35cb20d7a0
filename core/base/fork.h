// SPDX-License-Identifier: Apache-2.0
// Tells a process from the children that fork() makes of it: a child inherits copies of objects,
// but not the right to release what they stand for.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace tw {

namespace detail {
inline std::atomic<uint64_t> fork_depth{0};
}

// Differs between a process and everything it was forked from. The first call must come before the
// fork that is to be noticed: whoever holds a Birthplace has made it.
inline uint64_t fork_epoch() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { detail::fork_depth.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return detail::fork_depth.load(std::memory_order_relaxed);
}

// A member of objects that must know whether they are in the process that made them.
class Birthplace {
 public:
  bool here() const { return epoch_ == fork_epoch(); }

 private:
  uint64_t epoch_ = fork_epoch();
};

}  // namespace tw
