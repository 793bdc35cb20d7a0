// SPDX-License-Identifier: Apache-2.0
#include "message/frame_queue.h"

#include <algorithm>

namespace tw {
namespace {

constexpr size_t kLarge = 64 << 10;

}  // namespace

size_t FrameQueue::gather(std::span<iovec> room) const {
  size_t n = 0;
  size_t skip = taken_;
  const auto add = [&](const std::byte* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size != skipped) room[n++] = {const_cast<std::byte*>(data) + skipped, size - skipped};
  };
  for (const Frame& frame : frames_) {
    if (room.size() - n < 2) break;
    add(frame.head.data(), frame.head_size);
    add(frame.body, frame.body_size);
    if (frame.body_size > kLarge) break;
  }
  return n;
}

void FrameQueue::sent(size_t bytes) {
  taken_ += bytes;
  while (!frames_.empty() && taken_ >= frames_.front().head_size + frames_.front().body_size) {
    taken_ -= frames_.front().head_size + frames_.front().body_size;
    frames_.pop_front();
    copy_ = {};
  }
}

}  // namespace tw
