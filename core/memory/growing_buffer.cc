// SPDX-License-Identifier: Apache-2.0
#include "memory/growing_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tw {
namespace {

// Below this a buffer of its own costs more than it holds.
constexpr size_t kSmall = 1 << 10;

}  // namespace

static_assert(sizeof(HeapBlock) % alignof(std::max_align_t) == 0);

Ref<HeapBlock> HeapBlock::create(size_t bytes) noexcept {
  void* const memory = ::operator new(sizeof(HeapBlock) + bytes, std::nothrow);
  return memory ? Ref<HeapBlock>::adopt(new (memory) HeapBlock) : nullptr;
}

void HeapBlock::dispose() noexcept {
  this->~HeapBlock();
  ::operator delete(this);
}

bool GrowingBuffer::recycle(Pool& pool, size_t size) {
  Ref<PoolBuffer> buffer = pool.recycled(size);
  if (!buffer) return false;
  pooled_ = buffer.get();
  data_ = buffer->data();
  capacity_ = buffer->capacity();
  hold_ = std::move(buffer);
  return true;
}

bool GrowingBuffer::land(Pool& pool, size_t size) {
  if (size < PostedBuffer::kSmallest) return false;
  return land(pool.take_posted(size), size);
}

bool GrowingBuffer::land(Ref<PostedBuffer> buffer, size_t size) {
  if (!buffer) return false;
  posted_ = buffer.get();
  data_ = buffer->data();
  capacity_ = size;
  hold_ = std::move(buffer);
  return true;
}

void GrowingBuffer::move(std::byte* data, Hold hold) {
  posted_ = nullptr;
  data_ = data;
  hold_ = std::move(hold);
}

Status GrowingBuffer::reserve(Pool& pool, size_t size, size_t filled, size_t room) {
  if (room <= capacity_) return {};
  const size_t wanted = std::min(size, std::max(room, 2 * filled));
  if (wanted < kSmall) {
    Ref<HeapBlock> block = HeapBlock::create(wanted);
    if (!block) return {Code::kResourceExhausted, "no memory for what is received"};
    if (filled != 0) std::memcpy(block->data(), data_, filled);
    data_ = block->data();
    capacity_ = wanted;
    hold_ = std::move(block);
    return {};
  }
  if (pooled_ && pooled_->capacity() >= Pool::kSmallest) {
    if (Status status = pooled_->extend(wanted); !status.ok()) return status;
  } else {
    auto buffer = pool.get(wanted);
    if (!buffer) return buffer.status();
    if (filled != 0) std::memcpy((*buffer)->data(), data_, filled);
    pooled_ = buffer->get();
    hold_ = std::move(*buffer);
  }
  data_ = pooled_->data();
  capacity_ = pooled_->capacity();
  return {};
}

}  // namespace tw
