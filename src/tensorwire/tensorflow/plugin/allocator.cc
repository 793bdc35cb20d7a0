// SPDX-License-Identifier: Apache-2.0
#include "allocator.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "core.h"
#include "in_place.h"
#include "settings.h"
#include "statistics.h"
#include "tensorflow/core/framework/allocator_registry.h"
#include "tensorflow/core/platform/logging.h"
#include "traced.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// What blocks of the arena, and of reference variables, are aligned to. Few others are, so that
// most frees need not ask whose they are.
constexpr uintptr_t kArenaAlignment = 4096;

std::atomic<bool> g_forked{false};
std::atomic<bool> g_adopted{false};

void* plain(size_t alignment, size_t size) {
  void* memory = nullptr;
  return posix_memalign(&memory, std::max(alignment, sizeof(void*)), size) == 0 ? memory : nullptr;
}

class ArenaAllocator final : public tf::Allocator {
 public:
  ArenaAllocator() {
    // What a child inherits is its parent's: nothing there is handed out or given back.
    pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  }

  std::string Name() override { return "tensorwire"; }

  void* AllocateRaw(size_t alignment, size_t size) override {
    if (size < kSmall || alignment > kArenaAlignment || g_forked.load(std::memory_order_relaxed))
      return plain(alignment, size);
    if (OutsideArena::now()) {
      void* const block = plain(kArenaAlignment, size);
      if (block) reference_block_begins(block);
      return block;
    }
    if (settings().traced) {
      const Site site = allocating_site(size);
      if (!site_is_traced(site)) {
        void* const block = plain(alignment, size);
        if (block) remember_block(block, site);
        return block;
      }
      count(statistics().allocated_traced);
    }
    if (void* const block = core().arena_allocate(size)) {
      count(statistics().allocated_in_arena);
      return block;
    }
    warn_once();
    return plain(alignment, size);
  }

  void DeallocateRaw(void* memory) override {
    if (reinterpret_cast<uintptr_t>(memory) % kArenaAlignment == 0 && memory) {
      if (g_forked.load(std::memory_order_relaxed)) return;  // it may be the parent's
      if (core().arena_free(memory)) return;
      reference_block_ends(memory);
    }
    if (settings().traced) forget_block(memory);
    std::free(memory);
  }

 private:
  static void warn_once() {
    count(statistics().allocated_elsewhere);
    static std::atomic<bool> warned{false};
    if (warned.exchange(true)) return;
    LOG(WARNING)
        << "tensorwire: the arena is full, so that some tensors are copied when they are sent "
           "(or go by gRPC): raise TF_RDMA_BUF_SIZE (or TENSORWIRE_BUFFER_BYTES)";
  }
};

// For the configurations in which TensorFlow puts an allocator of its own on top (TensorFlow's
// allocation visitors, NUMA): ordinary memory.
class PlainSubAllocator final : public tf::SubAllocator {
 public:
  PlainSubAllocator() : SubAllocator({}, {}) {}
  void* Alloc(size_t alignment, size_t size, size_t* received) override {
    *received = size;
    return plain(alignment, size);
  }
  void Free(void* memory, size_t) override { std::free(memory); }
  bool SupportsCoalescing() const override { return false; }
};

class ArenaFactory final : public tf::AllocatorFactory {
 public:
  tf::Allocator* CreateAllocator() override { return new ArenaAllocator; }
  tf::SubAllocator* CreateSubAllocator(int) override { return new PlainSubAllocator; }
};

// Reads a private member, which explicit instantiation may name: registering an allocator after
// the first allocation ends the process, and the registry tells nobody whether there was one.
bool& first_allocation_made(tf::AllocatorFactoryRegistry& registry);
template <bool tf::AllocatorFactoryRegistry::* Member>
struct Reveal {
  friend bool& first_allocation_made(tf::AllocatorFactoryRegistry& registry) {
    return registry.*Member;
  }
};
template struct Reveal<&tf::AllocatorFactoryRegistry::first_alloc_made_>;

}  // namespace

tf::Allocator* arena_allocator() {
  static tf::Allocator* const allocator = new ArenaAllocator;
  return allocator;
}

bool adopt_arena() {
  tf::AllocatorFactoryRegistry& registry = *tf::AllocatorFactoryRegistry::singleton();
  if (registry.process_state() || first_allocation_made(registry)) return false;
  registry.Register(__FILE__, __LINE__, "tensorwire", 1000, new ArenaFactory);
  g_adopted = true;
  return true;
}

bool arena_adopted() { return g_adopted; }

}  // namespace tensorwire
