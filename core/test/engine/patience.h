// SPDX-License-Identifier: Apache-2.0
// Limits for tests that wait on other threads and processes.
#pragma once

#include <thread>

#include "base/clock.h"

namespace tw::test {

// A wait that never ends fails its test long before anybody loses patience.
inline Nanos patience() { return now() + 60 * kSecond; }

// Waits for what another thread is about to bring about.
template <class Done>
bool eventually(Done&& done) {
  const Nanos deadline = patience();
  while (!done()) {
    if (now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace tw::test
