// SPDX-License-Identifier: Apache-2.0
// Memory for bytes that a peer has announced and that come piece by piece. It grows with what has
// come, so that announcing costs the peer as much as us; a recycled buffer has room for all at
// once.
#pragma once

#include <cstddef>
#include <utility>

#include "memory/pool.h"

namespace tw {

// A little memory that is not recycled, aligned to 16.
class HeapBlock final : public RefCounted {
 public:
  // Null when there is none.
  static Ref<HeapBlock> create(size_t bytes) noexcept;
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }

 private:
  HeapBlock() = default;
  void dispose() noexcept override;
};

class GrowingBuffer {
 public:
  // Until there are bytes in it: memory of `pool` that was used before, for `size` bytes. False:
  // none is idle.
  bool recycle(Pool& pool, size_t size);
  // As recycle(), in memory that was posted for `size` bytes. False: none was.
  bool land(Pool& pool, size_t size);
  // As recycle(), in this memory. False: it is null.
  bool land(Ref<PostedBuffer> buffer, size_t size);
  // What it has landed in was withdrawn: it goes on in memory of the same size.
  void move(std::byte* data, Hold hold);
  // Room for `room` of the `size` bytes that there will be in the end; the first `filled` bytes
  // stay what they are and may move. RESOURCE_EXHAUSTED.
  Status reserve(Pool& pool, size_t size, size_t filled, size_t room);

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  const Hold& hold() const { return hold_; }
  // What it has landed in; null: it has not.
  PostedBuffer* posted() const { return posted_; }

 private:
  Hold hold_;
  PoolBuffer* pooled_ = nullptr;    // hold_, if it is one
  PostedBuffer* posted_ = nullptr;  // likewise
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tw
