// SPDX-License-Identifier: Apache-2.0
#include "process/copying.h"

#include <cstring>

#include "base/shortage.h"
#include "memory/huge_pages.h"
#include "process/runtime.h"

namespace tw {
void copy_bytes(std::byte* to, const std::byte* from, size_t size,
                Copier::Destination destination) noexcept {
  const Copier::Copy one{to, from, size, destination};
  copy_all({&one, 1});
}

// Small copies ask for no runtime, which the first to ask makes.
void copy_all(std::span<const Copier::Copy> copies) noexcept {
  size_t size = 0;
  for (const Copier::Copy& copy : copies) size += copy.size;
  bool copied = size == 0;
  if (size >= Copier::kShared)
    (void)has_memory_for([&] {
      const auto runtime = Runtime::get();
      if (!runtime) return;
      (*runtime)->copier().copy(copies);
      copied = true;
    });
  if (copied) return;
  for (const Copier::Copy& copy : copies)
    if (copy.size != 0) std::memcpy(copy.to, copy.from, copy.size);
}

void copy_payload(std::byte* to, const InMessage& message) noexcept {
  wish_huge_pages(to, message.payload_bytes);
  for (const InSegment& segment : message.segments) {
    copy_bytes(to, segment.data, segment.size, Copier::Destination::kFresh);
    to += segment.size;
  }
}

}  // namespace tw
