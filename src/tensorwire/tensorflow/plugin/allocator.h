// SPDX-License-Identifier: Apache-2.0
// Tensors that are born in the arena, so that they can be sent without a copy.
#pragma once

#include "tensorflow/core/framework/allocator.h"

namespace tensorwire {

// Large blocks come from the arena, small ones, and what the arena has no room for, from ordinary
// memory. So do what reference variables hold (in_place.h) and, with TENSORWIRE_TF_ARENA=traced,
// the blocks of sites that are not traced. One for the process; it lives for ever.
tensorflow::Allocator* arena_allocator();

// Makes it TensorFlow's allocator for the CPU, which is possible until TensorFlow has made its own.
// False: it has; servers then bring devices of their own.
bool adopt_arena();
bool arena_adopted();

}  // namespace tensorwire
