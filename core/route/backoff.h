// SPDX-License-Identifier: Apache-2.0
// Exponential back-off.
#pragma once

#include <cstdint>
#include <random>

#include "base/clock.h"

namespace tw::route {

class Backoff {
 public:
  explicit Backoff(uint32_t seed) : random_(seed) {}

  // How long to wait after so many failures in a row, at least one: twice as long each time, with a
  // jitter of 20 %, so that what failed together does not come back together.
  Nanos pause(int failures, Nanos first, Nanos longest);

 private:
  std::minstd_rand random_;
};

}  // namespace tw::route
