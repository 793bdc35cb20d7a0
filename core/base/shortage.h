// SPDX-License-Identifier: Apache-2.0
// When memory runs out: std::bad_alloc ends what was under way, never the process or one of its
// threads.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace tw {

// A little memory kept for whoever cleans up after std::bad_alloc. Costs no page until then.
class ShortageReserve {
 public:
  static void keep() noexcept {
    void* const fresh = std::malloc(kBytes);
    void* none = nullptr;
    if (!reserve_.compare_exchange_strong(none, fresh)) std::free(fresh);
  }
  static void spend() noexcept { std::free(reserve_.exchange(nullptr)); }

 private:
  static constexpr std::size_t kBytes = 96 << 10;  // of the heap, not a mapping of its own
  inline static std::atomic<void*> reserve_{nullptr};
};

// In a handler of std::bad_alloc.
class Shortage {
 public:
  Shortage() { ShortageReserve::spend(); }
  ~Shortage() { ShortageReserve::keep(); }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;
};

// Does it; false: there was no memory for it.
template <class Work>
bool has_memory_for(Work&& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    const Shortage shortage;
    return false;
  }
}

}  // namespace tw
