// SPDX-License-Identifier: Apache-2.0
// For tests that wait on other threads and processes: limits, and what outlives a test.
#pragma once

#include <atomic>
#include <deque>
#include <thread>

#include "base/clock.h"

namespace tw::test {

// Counts what threads of the runtime do, who may do it after the test has ended: it lasts.
inline std::atomic<int>& tally() {
  static auto& all = *new std::deque<std::atomic<int>>;
  return all.emplace_back(0);
}

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
