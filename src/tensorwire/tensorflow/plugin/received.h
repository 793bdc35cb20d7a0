// SPDX-License-Identifier: Apache-2.0
// Tensors made of what was received: in place where that can be, else copied.
#pragma once

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "transports.h"
#include "wire.h"

namespace tensorwire {

struct Received {
  wire::Form form = wire::Form::kRaw;
  bool dead = false;
  tensorflow::Tensor tensor;  // of form kPushed there is none
};
// The answer to a kRecvTensor. `by`: what it came by. `allocator`: for what is copied.
absl::Status receive_tensor(tw_message* message, Transport& by, tensorflow::Allocator* allocator,
                            Received* out);

// A tensor whose bytes are a whole segment of a message, or lie in one; of their right number.
absl::Status receive_segment(tw_message* message, size_t index, Transport& by,
                             tensorflow::Allocator* allocator, tensorflow::DataType dtype,
                             const tensorflow::TensorShape& shape, tensorflow::Tensor* out);
absl::Status receive_bytes(absl::string_view bytes, Transport& by, tensorflow::Allocator* allocator,
                           tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                           tensorflow::Tensor* out);

// The answer to a kRecvBuf, copied to `out`, which must have its size.
absl::Status receive_buffer(tw_message* message, tensorflow::Tensor* out);

}  // namespace tensorwire
