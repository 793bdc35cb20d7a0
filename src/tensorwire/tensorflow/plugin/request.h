// SPDX-License-Identifier: Apache-2.0
// What one worker asks another for, and how a tensor is described in the answer, in TensorFlow's
// types.
//
// A call has one of the methods below. Its request is one segment, a wire::Request. The answer to
// kRecvTensor has two segments, a wire::Head and the tensor's bytes; that to kRecvBuf has one, the
// buffer's bytes. A call that fails carries the payloads of its absl::Status as metadata. kPlan has
// no request: it is a stream both ways, of messages whose first segment is wire::PlanRecords.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "wire.h"

namespace tensorwire {

inline constexpr absl::string_view kRecvTensor = "/tensorwire.TensorFlow/RecvTensor";
inline constexpr absl::string_view kRecvBuf = "/tensorwire.TensorFlow/RecvBuf";
inline constexpr absl::string_view kPlan = "/tensorwire.TensorFlow/Plan";

struct TensorHead {
  wire::Form form = wire::Form::kRaw;
  bool dead = false;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;  // kRaw only, like the shape
  tensorflow::TensorShape shape;
};

wire::Head head_of(tensorflow::DataType dtype, const tensorflow::TensorShape& shape);
// Of a kRaw head whose tensors can be copied as bytes; why it is none. INTERNAL.
absl::Status types_of(const wire::Head& head, tensorflow::DataType* dtype,
                      tensorflow::TensorShape* shape);
std::string write_head(const TensorHead& head);
// `size`: bytes of the tensor's segment, which a kRaw head has to account for. INTERNAL.
absl::Status read_head(absl::string_view bytes, size_t size, TensorHead* out);

// The payloads of a status as metadata, kept alive by this.
class StatusPairs {
 public:
  explicit StatusPairs(const absl::Status& status);
  tw_pairs get() const { return {pairs_.data(), pairs_.size()}; }

 private:
  std::vector<std::string> values_;
  std::vector<tw_pair> pairs_;
};
// Adds to `status` the payloads that came with it; null: none did.
void add_payloads(const tw_metadata* metadata, absl::Status* status);

}  // namespace tensorwire
