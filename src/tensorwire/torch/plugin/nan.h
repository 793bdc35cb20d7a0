// SPDX-License-Identifier: Apache-2.0
// Reductions that refuse NaN, as with TORCH_DISTRIBUTED_DEBUG=DETAIL.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "core.h"
#include "work.h"

namespace tensorwire {

// The operation, begun once the ranks have agreed that no tensor of any of them has a NaN: all of
// them call this. Else it throws on each rank, before anything is sent, and the group goes on.
// Tensors that are not the CPU's, or no floats, are not looked at.
Work::Body without_nan(std::shared_ptr<tw_group> group, int rank, std::string title,
                       std::vector<at::Tensor> tensors, Work::Body body);

}  // namespace tensorwire
