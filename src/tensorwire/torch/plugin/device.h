// SPDX-License-Identifier: Apache-2.0
// Operations on tensors of a CUDA device. All goes by PyTorch's own interface to devices, which its
// builds for the CPU have, too: nothing here knows CUDA.
#pragma once

#include <ATen/ATen.h>

#include "core.h"
#include "work.h"

namespace tensorwire {

// Has Python load the NVRTC of an installed package: the module has it.
void load_nvrtc();

// Throws unless the runtime reaches the device, which is one of CUDA.
void check_device(const at::Device& device);

// What a call of the runtime's is told of where a tensor lies; null for one of the CPU. `into`
// holds it. The tensor is ready after what this thread's current stream has queued.
const tw_device* place_of(const at::Tensor& tensor, tw_device* into);

// The body of an operation whose tensors lie there, begun now by this thread: its work on tensors
// goes by a stream of its own, after what this thread's current stream has queued by now. When it
// returns TW_OK, all of that is over. For the CPU: the body itself.
Work::Body on_device(const at::Device& device, Work::Body body);

}  // namespace tensorwire
