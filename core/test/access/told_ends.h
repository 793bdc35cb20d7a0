// SPDX-License-Identifier: Apache-2.0
// Counts the operations of a test that have told that they ended.
#pragma once

#include <array>

#include "engine/event_queue.h"

namespace tw::test {

class ToldEnds {
 public:
  Notice next() { return {queue_, 0}; }
  size_t count() {
    std::array<uint64_t, 64> tokens;
    size_t more = 0;
    while (queue_->take(tokens, more, 0) == Waited::kDone) count_ += more;
    return count_;
  }

 private:
  const Ref<EventQueue> queue_ = make_ref<EventQueue>();
  size_t count_ = 0;
};

}  // namespace tw::test
