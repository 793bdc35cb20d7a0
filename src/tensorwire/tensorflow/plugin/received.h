// SPDX-License-Identifier: Apache-2.0
// Tensors made of what was received: in place where that can be, else copied.
#pragma once

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "transports.h"

namespace tensorwire {

// The answer to a kRecvTensor. `by`: what it came by. `allocator`: for what is copied.
absl::Status receive_tensor(tw_message* message, Transport& by, tensorflow::Allocator* allocator,
                            tensorflow::Tensor* out, bool* dead);

// The answer to a kRecvBuf, copied to `out`, which must have its size.
absl::Status receive_buffer(tw_message* message, tensorflow::Tensor* out);

}  // namespace tensorwire
