// SPDX-License-Identifier: Apache-2.0
// How long to poll before sleeping: up to the budget while polling pays, next to nothing while it
// does not, and nothing the first time: many links serve one call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace tw {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// True when this process may run on one CPU only: then polling keeps the peer from running.
bool single_cpu();

// Not thread-safe: belongs to whoever holds the link's baton.
class Spinner {
 public:
  explicit Spinner(Nanos budget) : budget_(single_cpu() ? 0 : budget) {}

  // Polls ready() for this wait's share of the budget. Each poll may do real work; ready() returns
  // true to stop.
  template <class Ready>
  bool operator()(Ready&& ready) {
    if (ready()) return true;
    const Nanos share = next_share();
    if (share <= 0) return false;
    const Nanos end = now() + share;
    do {
      for (int i = 0; i < 16; ++i) {
        cpu_relax();
        if (ready()) {
          hit();
          return true;
        }
      }
    } while (now() < end);
    miss();
    return false;
  }

 private:
  static constexpr uint32_t kPatience = 16;    // misses in a row before polling stops
  static constexpr uint32_t kProbeEvery = 16;  // how often it is tried again after that

  Nanos next_share() {
    if (!std::exchange(waited_, true)) return 0;
    if (misses_ < kPatience) return budget_;
    return ++skipped_ % kProbeEvery == 0 ? budget_ : 0;
  }
  void hit() { misses_ = misses_ > 4 ? misses_ - 4 : 0; }
  void miss() { misses_ = std::min(misses_ + 1, 2 * kPatience); }

  const Nanos budget_;
  bool waited_ = false;
  uint32_t misses_ = 0;
  uint32_t skipped_ = 0;
};

}  // namespace tw
