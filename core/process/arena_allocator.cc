// SPDX-License-Identifier: Apache-2.0
#include "process/arena_allocator.h"

#include <algorithm>

#include "memory/memfd.h"

namespace tw {

std::byte* arena_allocate(Runtime& runtime, size_t size) {
  // Smaller blocks are lent to nobody, and are aligned to less.
  auto block = runtime.arena().allocate_with_room(std::max(size, page_size()));
  if (!block) return nullptr;
  runtime.memory_used();
  return block->leak()->data();
}

bool arena_free(Runtime& runtime, const void* data) {
  const Ref<Block> block = runtime.arena().find(data, 0);
  if (!block || block->data() != data) return false;
  block->release();  // the reference that arena_allocate() has leaked
  return true;
}

}  // namespace tw
