// SPDX-License-Identifier: Apache-2.0
// How long to poll before sleeping: for a short while, for longer where that has paid, next to
// nothing while it does not, and nothing the first time: many links serve one call.
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
  // What a wait is polled for that is like any other. About what it costs to be woken.
  static constexpr Nanos kUsual = 50 * kMicrosecond;

  // most: what one wait is polled for at most.
  explicit Spinner(Nanos most) : most_(single_cpu() ? 0 : most), usual_(std::min(most_, kUsual)) {}

  // Polls ready() for this wait's share. Each poll may do real work; ready() returns true to stop.
  template <class Ready>
  bool operator()(Ready&& ready) {
    if (ready()) return true;
    const Nanos share = next_share();
    if (share <= 0) return false;
    const Nanos begun = now();
    Nanos at = begun;
    do {
      for (int i = 0; i < 16; ++i) {
        cpu_relax();
        if (ready()) {
          hit(at - begun);
          return true;
        }
      }
      at = now();
    } while (at < begun + share);
    miss();
    return false;
  }

 private:
  static constexpr uint32_t kPatience = 16;    // misses in a row before polling stops
  static constexpr uint32_t kProbeEvery = 16;  // how often a wait is polled for the most
  static constexpr uint32_t kRarest = 256;     // ... while none of those ends in time
  static constexpr uint32_t kTrust = 4;        // misses before waits are like any other again

  Nanos next_share() {
    if (!std::exchange(waited_, true)) return 0;
    if (trust_ != 0) return most_;
    if (++unprobed_ >= probe_every_) {
      unprobed_ = 0;
      return most_;
    }
    return misses_ < kPatience ? usual_ : 0;
  }
  void hit(Nanos took) {
    misses_ = misses_ > 4 ? misses_ - 4 : 0;
    if (took < usual_) return;
    trust_ = kTrust;
    probe_every_ = kProbeEvery;
  }
  void miss() {
    misses_ = std::min(misses_ + 1, 2 * kPatience);
    if (trust_ != 0)
      --trust_;
    else if (unprobed_ == 0)  // it was a probe
      probe_every_ = std::min(2 * probe_every_, kRarest);
  }

  const Nanos most_, usual_;
  bool waited_ = false;
  uint32_t misses_ = 0;
  uint32_t trust_ = 0;  // that the next wait ends within the most
  uint32_t unprobed_ = 0, probe_every_ = kProbeEvery;
};

}  // namespace tw
