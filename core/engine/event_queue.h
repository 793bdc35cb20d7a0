// SPDX-License-Identifier: Apache-2.0
// Where the ends of calls, accesses and receives are announced to threads of the layer above, which
// may then run the user's callbacks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/ref.h"
#include "engine/event.h"

namespace tw {

class EventQueue final : public RefCounted {
 public:
  EventQueue() { tokens_.reserve(kRoom); }

  // std::bad_alloc: the token is not there.
  void push(uint64_t token) {
    {
      std::lock_guard lock(mutex_);
      make_room();
      tokens_.push_back(token);
    }
    event_.notify(1);
  }

  // Room for one token that comes later: putting it there takes no memory.
  class Place {
   public:
    explicit Place(Ref<EventQueue> queue) : queue_(std::move(queue)) {
      std::lock_guard lock(queue_->mutex_);
      queue_->make_room();
      ++queue_->promised_;
    }
    Place(Place&&) noexcept = default;
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (!queue_) return;
      std::lock_guard lock(queue_->mutex_);
      --queue_->promised_;
    }
    // Once.
    void push(uint64_t token) {
      const Ref<EventQueue> queue = std::move(queue_);
      {
        std::lock_guard lock(queue->mutex_);
        --queue->promised_;
        queue->tokens_.push_back(token);
      }
      queue->event_.notify(1);
    }

   private:
    Ref<EventQueue> queue_;  // null once pushed
  };

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    event_.notify();
  }

  enum class Taken : uint8_t { kTokens, kTimeout, kSignal, kClosed };
  // Waits for at least one token and takes `count` of them, as many as `room` holds; after close()
  // the remaining ones come first.
  Taken take(std::span<uint64_t> room, size_t& count, Nanos deadline) {
    for (;;) {
      const uint32_t seen = event_.sequence();
      {
        std::lock_guard lock(mutex_);
        if (!tokens_.empty()) {
          count = std::min(room.size(), tokens_.size());
          const auto end = tokens_.begin() + static_cast<ptrdiff_t>(count);
          std::copy(tokens_.begin(), end, room.begin());
          tokens_.erase(tokens_.begin(), end);
          return Taken::kTokens;
        }
        if (closed_) return Taken::kClosed;
      }
      switch (event_.wait(seen, deadline)) {
        case FutexWait::kWoken:
          break;
        case FutexWait::kTimeout:
          return Taken::kTimeout;
        case FutexWait::kSignal:
          return Taken::kSignal;
      }
    }
  }

 private:
  static constexpr size_t kRoom = 64;

  // Mutex held: for one token besides those there and those that have a place.
  void make_room() {
    const size_t needed = tokens_.size() + promised_ + 1;
    if (needed > tokens_.capacity()) tokens_.reserve(std::max(needed, 2 * tokens_.capacity()));
  }

  Event event_;
  std::mutex mutex_;  // guards what follows; no other lock is taken inside
  std::vector<uint64_t> tokens_;
  size_t promised_ = 0;
  bool closed_ = false;
};

}  // namespace tw
