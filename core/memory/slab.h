// SPDX-License-Identifier: Apache-2.0
// A slab: one sealed memory file of this process's arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/mapping.h"
#include "memory/memfd.h"

namespace tw {

class Slab final : public RefCounted {
 public:
  // `size`: bytes, a multiple of page_size(). No page of it is resident yet.
  static Result<Ref<Slab>> make(uint32_t index, uint32_t generation, size_t size);

  uint32_t index() const { return index_; }
  uint32_t generation() const { return generation_; }
  size_t size() const { return map_.size(); }
  std::byte* base() const { return map_.data(); }
  // Read-only descriptor for the hand-over to a peer; stays owned by the slab.
  int fd() const { return fd_.get(); }
  // RESOURCE_EXHAUSTED: no peer takes in a slab of its index.
  Status shareable() const;
  // `bytes`, which lie within it, where writing to them is as harmless as where a peer has them on
  // lease. RESOURCE_EXHAUSTED.
  Result<Located> harmless(std::span<const std::byte> bytes);
  // True once the arena has given the slab up: its region references are dead, and its memory
  // goes back when the last reference and the last peer's mapping have gone.
  bool dropped() const { return dropped_.load(std::memory_order_acquire); }
  void drop() { dropped_.store(true, std::memory_order_release); }

 private:
  Slab(uint32_t index, uint32_t generation, MemoryMap map, Fd fd)
      : index_(index), generation_(generation), map_(std::move(map)), fd_(std::move(fd)) {}

  const uint32_t index_;
  const uint32_t generation_;
  const MemoryMap map_;
  const Fd fd_;
  std::atomic<bool> dropped_{false};
  Mutex mutex_;
  Ref<SlabMapping> private_ TW_GUARDED_BY(mutex_);  // made when it is first needed
};

}  // namespace tw
