// SPDX-License-Identifier: Apache-2.0
// Arena memory for who waits until there is room, and may be interrupted meanwhile.
#pragma once

#include <cstddef>

#include "engine/waiting.h"
#include "memory/arena.h"

namespace tw {

// As Arena::allocate(). Null: interrupted.
Result<Ref<Block>> allocate(Arena& arena, size_t size, const Ref<Quota>& quota, const Wait& wait);

}  // namespace tw
