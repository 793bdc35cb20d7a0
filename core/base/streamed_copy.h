// SPDX-License-Identifier: Apache-2.0
// Copies that go around the caches.
#pragma once

#include <cstddef>

namespace tw {

// From this size on what is copied does not stay in a core's caches, and stores that go around them
// save reading the destination first.
inline constexpr size_t kStreamed = 16 << 20;

// As memcpy, but that nothing of `to` is in the caches afterwards. For a part of a copy of at least
// kStreamed bytes. Other threads see it as they see stores that came before a release.
void copy_streamed(std::byte* to, const std::byte* from, size_t size);

}  // namespace tw
