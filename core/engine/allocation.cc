// SPDX-License-Identifier: Apache-2.0
#include "engine/allocation.h"

namespace tw {

Result<Ref<Block>> allocate(Arena& arena, size_t size, const Ref<Quota>& quota, const Wait& wait) {
  Result<Ref<Block>> block = Ref<Block>();
  const Ended ended = wait_through(wait, [&](Nanos until) {
    block = arena.allocate(size, until, quota);
    if (block || block.status().code() != Code::kResourceExhausted) return Waited::kDone;
    // What comes sooner is no want of time: to wait on would not help.
    return now() < until ? Waited::kDone : Waited::kTimeout;
  });
  if (ended == Ended::kInterrupted) return Ref<Block>();
  return block;
}

}  // namespace tw
