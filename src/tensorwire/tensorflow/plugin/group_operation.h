// SPDX-License-Identifier: Apache-2.0
// TensorFlow's collectives as operations of a group of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire {

// The rank of a device in a group that has one CPU device of each of several workers; nothing: it
// is not such a group. All members come to the same.
std::optional<uint32_t> rank_in(const tensorflow::CollGroupParams& group,
                                const std::string& device);

// An operation with the tensors that it needs, which may outlive the kernel that asked for it.
class GroupOperation {
 public:
  // Nothing: groups have no such operation. It depends on what all members have in common.
  static std::optional<GroupOperation> of(tensorflow::OpKernelContext* context,
                                          const tensorflow::CollectiveParams& parameters);

  // All members, in the same order as their other operations. TW_OK, or as tw_group_run.
  int run(tw_group* group, tw_status* status);
  // Of the result.
  size_t bytes() const { return output_.TotalBytes(); }
  bool empty() const { return output_.NumElements() == 0; }

 private:
  GroupOperation() = default;
  int all_to_all(tw_group* group, tw_status* status);

  int kind_ = 0;
  int type_ = TW_UINT8;
  int op_ = TW_SUM;
  int root_ = 0;
  uint64_t count_ = 0;  // elements, as tw_group_run has them
  bool gives_ = true;   // whether this member's input is asked for
  tensorflow::Tensor input_, output_;
};

}  // namespace tensorwire
