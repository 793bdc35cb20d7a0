// SPDX-License-Identifier: Apache-2.0
#include "memory/receive_memory.h"

#include <utility>

namespace tw {

// One received block. In a forked child it counts down a copy of the parent's figure.
class ReceiveMemory::Landing final : public RefCounted {
 public:
  Landing(Ref<ReceiveMemory> memory, Ref<Block> block)
      : memory_(std::move(memory)), block_(std::move(block)) {}

 private:
  ~Landing() override { memory_->used_.fetch_sub(block_->capacity(), std::memory_order_relaxed); }

  const Ref<ReceiveMemory> memory_;
  const Ref<Block> block_;
};

Result<ReceiveMemory::Buffer> ReceiveMemory::get(size_t size) {
  // Links that ask at the same time may overshoot by what each of them takes.
  if (const size_t used = in_arena(); size <= limit_ && used <= limit_ - size) {
    if (auto block = arena_->allocate(size)) {
      std::byte* const data = (*block)->data();
      const size_t capacity = (*block)->capacity();
      Hold landing = make_ref<Landing>(Ref<ReceiveMemory>::share(this), std::move(*block));
      used_.fetch_add(capacity, std::memory_order_relaxed);  // until the landing goes
      return Buffer{data, std::move(landing), true};
    }
  }
  auto buffer = pool_->get(size);
  if (!buffer) return buffer.status();
  std::byte* const data = (*buffer)->data();
  return Buffer{data, std::move(*buffer), false};
}

}  // namespace tw
