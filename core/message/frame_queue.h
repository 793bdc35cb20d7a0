// SPDX-License-Identifier: Apache-2.0
// Whole frames waiting to be sent, in order, whose bodies stay where they are until the transport
// takes them.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace tw {

class FrameQueue {
 public:
  struct Frame {
    std::array<std::byte, 256> head;  // what comes before the body; all of a small frame
    size_t head_size = 0;
    const std::byte* body = nullptr;
    size_t body_size = 0;
    bool outcome = false;  // else an operation
    uint64_t region = 0;   // outcome: whose memory the body is
    uint64_t id = 0;       // of the operation
  };

  void push(const Frame& frame) { frames_.push_back(frame); }
  bool pending() const { return !frames_.empty(); }
  size_t size() const { return frames_.size(); }
  // A frame has begun and not ended.
  bool midway() const { return taken_ != 0; }

  // The next bytes to send; ends after a large body, so that others get their turn.
  size_t gather(std::span<iovec> room) const;
  // How many of them the transport took.
  void sent(size_t bytes);

  // Afterwards no body for which whose(frame) holds is read where it lies. What has begun is
  // finished from a copy; of the others instead(frame) makes another frame, or says false: dropped.
  template <class Whose, class Instead>
  void take_back(Whose&& whose, Instead&& instead) {
    std::deque<Frame> kept;
    for (size_t i = 0; i < frames_.size(); ++i) {
      Frame& frame = frames_[i];
      if (!whose(frame)) {
        kept.push_back(frame);
      } else if (i == 0 && midway()) {
        if (frame.body_size != 0 && frame.body != copy_.data()) {
          copy_.assign(frame.body, frame.body + frame.body_size);
          frame.body = copy_.data();
        }
        kept.push_back(frame);
      } else if (instead(frame)) {
        kept.push_back(frame);
      }
    }
    frames_.swap(kept);
  }
  void drop() {
    frames_.clear();
    copy_ = {};
    taken_ = 0;
  }

 private:
  std::deque<Frame> frames_;
  size_t taken_ = 0;  // of the first
  std::vector<std::byte> copy_;
};

}  // namespace tw
