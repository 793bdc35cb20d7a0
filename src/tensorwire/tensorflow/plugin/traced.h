// SPDX-License-Identifier: Apache-2.0
// Which allocations are of tensors that are sent (TENSORWIRE_TF_ARENA=traced). A block in ordinary
// memory is remembered with the site that allocated it; when it is sent, its site is traced from
// then on, and what it allocates later is born in the arena. The method of "RPC Considered Harmful"
// (arXiv 1805.08430).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tensorwire {

// A mark of what allocates: the operation, its output or temporary memory, the element type and the
// power of two below the size; where no operation is known, the size. Never 0.
using Site = uint64_t;

// Where the calling thread is about to allocate.
Site allocating_site(size_t size);
bool site_is_traced(Site site);

// A block in ordinary memory begins and ends. What was remembered longest gives way to it.
void remember_block(const void* block, Site site);
void forget_block(const void* block);

// The tensor is sent. If its block is remembered, the block's site is traced from now on.
void trace_sent(const tensorflow::Tensor& tensor);

}  // namespace tensorwire
