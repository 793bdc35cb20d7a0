// SPDX-License-Identifier: Apache-2.0
// An allocator that counts, and fails on demand.
#pragma once

#include <cstddef>

#include "test/sanitized.h"

namespace tw::test {

// ThreadSanitizer insists on its own allocator: nothing is counted there, and nothing fails.
inline constexpr bool kFailsOnDemand = !TENSORWIRE_THREAD_SANITIZED;

// Of the threads that called suffer(), the n-th allocation from now on fails; 0: none does.
void fail_allocation(int n);
// Whether it has come to that since.
bool allocation_failed();
// Bytes that this thread has allocated, less those that it has freed: what threads of earlier cases
// still free does not count. Only differences mean something.
size_t live_bytes();
// The calling thread is one whose allocations fail.
void suffer(bool yes);

// The n-th allocation of this thread fails, for as long as it lives.
class Failing {
 public:
  explicit Failing(int n) {
    suffer(true);
    fail_allocation(n);
  }
  ~Failing() { (void)end(); }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
  // Whether it has come to that.
  bool end() {
    const bool failed = allocation_failed();
    fail_allocation(0);
    suffer(false);
    return failed;
  }
};

// Runs `function` with its first, second, ... allocation failing, until it needs no more of them.
template <class Function>
int fail_each(Function&& function) {
  for (int n = 1;; ++n) {
    Failing failing(n);
    function();
    if (!failing.end()) return n - 1;
  }
}

}  // namespace tw::test
