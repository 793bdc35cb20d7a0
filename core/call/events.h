// Where ended calls are announced to threads of the layer above, which may then run the user's
// callbacks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "base/ref.h"
#include "engine/event.h"

namespace tw {

class EventQueue final : public RefCounted {
 public:
  void push(uint64_t token) {
    {
      std::lock_guard lock(mutex_);
      tokens_.push_back(token);
    }
    event_.notify(1);
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    event_.notify();
  }

  enum class Taken : uint8_t { kTokens, kTimeout, kSignal, kClosed };
  // Waits for at least one token and takes at most `room`; after close() the remaining ones come
  // first.
  Taken take(std::vector<uint64_t>& tokens, size_t room, Nanos deadline) {
    for (;;) {
      const uint32_t seen = event_.sequence();
      {
        std::lock_guard lock(mutex_);
        if (!tokens_.empty()) {
          const auto end = tokens_.begin() + static_cast<ptrdiff_t>(std::min(room, tokens_.size()));
          tokens.assign(tokens_.begin(), end);
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
  Event event_;
  std::mutex mutex_;  // guards what follows
  std::vector<uint64_t> tokens_;
  bool closed_ = false;
};

}  // namespace tw
