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
// Bytes that were allocated and not freed, by all threads.
size_t live_bytes();
// The calling thread is one whose allocations fail.
void suffer(bool yes);

}  // namespace tw::test
