// SPDX-License-Identifier: Apache-2.0
#include "process/copying.h"

#include <cstring>

#include "base/shortage.h"
#include "memory/huge_pages.h"
#include "process/runtime.h"

namespace tw {
// A small copy asks for no runtime, which the first to ask makes.
void copy_bytes(std::byte* to, const std::byte* from, size_t size,
                Copier::Destination destination) noexcept {
  bool copied = size == 0;
  if (size >= Copier::kShared)
    (void)has_memory_for([&] {
      const auto runtime = Runtime::get();
      if (!runtime) return;
      (*runtime)->copier().copy(to, from, size, destination);
      copied = true;
    });
  if (!copied) std::memcpy(to, from, size);
}

void copy_payload(std::byte* to, const InMessage& message) noexcept {
  wish_huge_pages(to, message.payload_bytes);
  for (const InSegment& segment : message.segments) {
    copy_bytes(to, segment.data, segment.size, Copier::Destination::kFresh);
    to += segment.size;
  }
}

}  // namespace tw
