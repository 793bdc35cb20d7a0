// SPDX-License-Identifier: Apache-2.0
#include "process/posting.h"

#include <typeinfo>
#include <utility>

#include "memory/huge_pages.h"

namespace tw {

void post(Runtime& runtime, Ref<PostedBuffer> buffer) {
  if (buffer->size() < PostedBuffer::kSmallest) return;
  wish_huge_pages(buffer->data(), buffer->size());
  runtime.pool().post(std::move(buffer));
  runtime.memory_used();
}

PostedBuffer* posted_for(const InMessage& message) {
  if (message.segments.size() != 1) return nullptr;
  RefCounted* const held = message.segments[0].hold.get();
  return held && typeid(*held) == typeid(PostedBuffer) ? static_cast<PostedBuffer*>(held) : nullptr;
}

}  // namespace tw
