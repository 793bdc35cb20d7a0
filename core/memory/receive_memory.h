// SPDX-License-Identifier: Apache-2.0
// Where segments land that are fetched one-sidedly: in blocks of this process's own arena, whose
// slabs a device knows already, as long as these leave the senders their share of it; else in
// buffers of the pool.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/ref.h"
#include "base/status.h"
#include "memory/arena.h"
#include "memory/pool.h"

namespace tw {

// Thread-safe.
class ReceiveMemory final : public RefCounted {
 public:
  // `limit`: most bytes of the arena that received segments may take up at a time.
  ReceiveMemory(Ref<Arena> arena, Ref<Pool> pool, size_t limit)
      : arena_(std::move(arena)), pool_(std::move(pool)), limit_(limit) {}

  // Received memory is whoever holds `hold`'s; it goes back with the last reference. A block is
  // not published: sent on, it is copied like any memory that somebody may still write.
  struct Buffer {
    std::byte* data = nullptr;
    Hold hold;
    bool in_arena = false;
  };
  // Memory for `size` bytes with undefined contents; never waits. RESOURCE_EXHAUSTED when the
  // system has no memory.
  Result<Buffer> get(size_t size);

  // Bytes of the arena that are taken up now, rounding included.
  size_t in_arena() const { return used_.load(std::memory_order_relaxed); }

 private:
  class Landing;

  const Ref<Arena> arena_;
  const Ref<Pool> pool_;
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

}  // namespace tw
