// SPDX-License-Identifier: Apache-2.0
#include "base/unshared.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tw {
namespace {

// One bit for each number; what lies beyond stays open in children. No lock, which another thread
// could hold when this one forks.
constexpr size_t kNumbers = 1 << 16;
std::array<std::atomic<uint64_t>, kNumbers / 64> g_unshared{};

// Takes neither memory nor a lock. Where no descriptor can be made, the child keeps what it has.
void leave_to_parent() {
  const Fd inert(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (size_t word = 0; word < g_unshared.size(); ++word) {
    uint64_t bits = g_unshared[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1)
      if (inert) dup3(inert.get(), static_cast<int>(word * 64) + std::countr_zero(bits), O_CLOEXEC);
  }
}

}  // namespace

void UnsharedFd::mark(bool on) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, leave_to_parent);
  const auto number = static_cast<size_t>(fd_.get());  // a number below 0 is beyond
  if (number >= kNumbers) return;
  const uint64_t bit = uint64_t{1} << (number % 64);
  if (on)
    g_unshared[number / 64].fetch_or(bit, std::memory_order_relaxed);
  else
    g_unshared[number / 64].fetch_and(~bit, std::memory_order_relaxed);
}

}  // namespace tw
