// SPDX-License-Identifier: Apache-2.0
#include "test/shortage.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace tw::test {
namespace {

std::atomic<int> countdown{0};
std::atomic<bool> failed{false};
thread_local size_t live = 0;
thread_local bool suffering = false;

}  // namespace

void fail_allocation(int n) {
  failed = false;
  countdown = n;
}
bool allocation_failed() { return failed; }
size_t live_bytes() { return live; }
void suffer(bool yes) { suffering = yes; }

}  // namespace tw::test

#if !TENSORWIRE_THREAD_SANITIZED

namespace tw::test {
namespace {

bool fails() {
  if (!suffering || countdown.load(std::memory_order_relaxed) == 0) return false;
  if (countdown.fetch_sub(1) != 1) return false;
  failed = true;
  return true;
}

// With the word that malloc keeps for each.
size_t cost(void* memory) { return malloc_usable_size(memory) + sizeof(size_t); }

void* allocate(std::size_t size, std::size_t alignment) {
  if (fails()) return nullptr;
  void* const memory =
      alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
          ? std::malloc(size ? size : 1)
          : std::aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
  if (memory) live += cost(memory);
  return memory;
}

void release(void* memory) {
  if (!memory) return;
  live -= cost(memory);
  std::free(memory);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* const memory = allocate(size, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace tw::test

void* operator new(std::size_t size) { return tw::test::allocate_or_throw(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return tw::test::allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return tw::test::allocate(size, 1);
}
void* operator new[](std::size_t size) { return tw::test::allocate_or_throw(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return tw::test::allocate(size, 1);
}
void operator delete(void* memory) noexcept { tw::test::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { tw::test::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { tw::test::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  tw::test::release(memory);
}
void operator delete[](void* memory) noexcept { tw::test::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { tw::test::release(memory); }

#endif
