// SPDX-License-Identifier: Apache-2.0
// When memory runs out: std::bad_alloc ends what was under way, never the process or one of its
// threads.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace tw {

// A little address space kept for whoever cleans up after std::bad_alloc. No block of the heap, as
// the allocator would give that to threads of one of its arenas only. Costs no page.
class ShortageReserve {
 public:
  static void keep() noexcept {
    void* const fresh =
        mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) return;
    void* none = nullptr;
    if (!reserve_.compare_exchange_strong(none, fresh)) munmap(fresh, kBytes);
  }
  static void spend() noexcept {
    if (void* const kept = reserve_.exchange(nullptr)) munmap(kept, kBytes);
  }

 private:
  static constexpr std::size_t kBytes = 4 << 20;  // an arena grows by as much as 1 MiB at once
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
