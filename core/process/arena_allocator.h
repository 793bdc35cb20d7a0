// SPDX-License-Identifier: Apache-2.0
// Arena memory for the allocators of frameworks, which know memory by its address only.
#pragma once

#include <cstddef>

#include "process/runtime.h"

namespace tw {

// Memory of at least a page, aligned to 4096 bytes, until it is given to arena_free(). Null: the
// arena has no room now; see Arena::allocate_with_room().
std::byte* arena_allocate(Runtime& runtime, size_t size);

// Peers that have it on lease keep it. False: no block of the arena begins there.
bool arena_free(Runtime& runtime, const void* data);

}  // namespace tw
