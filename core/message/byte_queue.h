// SPDX-License-Identifier: Apache-2.0
// Bytes waiting to be sent: appended at the end, taken from the front, in one contiguous run.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace tw {

class ByteQueue {
 public:
  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  const std::byte* data() const { return bytes_.get() + head_; }
  std::span<std::byte> bytes() { return {bytes_.get() + head_, size()}; }

  // Room for n more bytes at the end, which the caller fills. Valid until the next call.
  std::byte* extend(size_t n) {
    if (tail_ + n > capacity_) reserve(n);
    std::byte* const room = bytes_.get() + tail_;
    tail_ += n;
    return room;
  }

  void append(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(extend(bytes.size()), bytes.data(), bytes.size());
  }

  void consume(size_t n) {
    head_ += n;
    if (head_ != tail_) return;
    head_ = tail_ = 0;
    if (capacity_ > kKeptCapacity) {
      bytes_.reset();
      capacity_ = 0;
    }
  }

 private:
  // A burst does not pin its memory for the life of an idle link.
  static constexpr size_t kKeptCapacity = 64 << 10;

  void reserve(size_t n) {
    const size_t used = size();
    if (used + n <= capacity_ && head_ >= used) {
      std::memcpy(bytes_.get(), bytes_.get() + head_, used);
    } else {
      // Room for the backlog once more, so that it is not copied again before it has moved on.
      size_t capacity = capacity_ ? capacity_ : 1024;
      while (capacity < 2 * used + n) capacity *= 2;
      std::unique_ptr<std::byte[]> grown(new std::byte[capacity]);
      if (used) std::memcpy(grown.get(), data(), used);
      bytes_ = std::move(grown);
      capacity_ = capacity;
    }
    head_ = 0;
    tail_ = used;
  }

  std::unique_ptr<std::byte[]> bytes_;
  size_t capacity_ = 0, head_ = 0, tail_ = 0;
};

}  // namespace tw
