// SPDX-License-Identifier: Apache-2.0
// Many tensors in one call: small ones of one type side by side, so that they wait for others once.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <vector>

#include "core.h"

namespace tensorwire {

// Places in a list of tensors, in ascending order.
using Places = std::vector<size_t>;

// Those that travel together, in the order of the first of each: the same on ranks whose tensors
// have the same sizes and types. One that is large is alone.
std::vector<Places> batches_of(const std::vector<at::Tensor>& tensors);

// One call for the tensors at those places, of which each has one for itself. Ranks whose tensors
// have other sizes call something else, with the same sum of sizes, too.
tw_collective together(const std::vector<tw_collective>& calls, const Places& places);
std::vector<at::Tensor> chosen(const std::vector<at::Tensor>& tensors, const Places& places);

// Tensors that have a row for each rank, side by side: (ranks, elements of all rows), where there
// is one perhaps its own memory; and what is in such rows into the tensors.
at::Tensor rows_joined(const std::vector<at::Tensor>& tensors, int64_t ranks);
void take_rows_apart(const at::Tensor& rows, const std::vector<at::Tensor>& tensors);

}  // namespace tensorwire
