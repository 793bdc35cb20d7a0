// SPDX-License-Identifier: Apache-2.0
#include "group_operation.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

constexpr tw_wait kForever{-1, nullptr, nullptr};

std::optional<int> type_of(tf::DataType type) {
  switch (type) {
    case tf::DT_DOUBLE:
      return TW_FLOAT64;
    case tf::DT_FLOAT:
      return TW_FLOAT32;
    case tf::DT_HALF:
      return TW_FLOAT16;
    case tf::DT_BFLOAT16:
      return TW_BFLOAT16;
    case tf::DT_INT8:
      return TW_INT8;
    case tf::DT_INT16:
      return TW_INT16;
    case tf::DT_INT32:
      return TW_INT32;
    case tf::DT_INT64:
      return TW_INT64;
    case tf::DT_UINT8:
      return TW_UINT8;
    case tf::DT_UINT16:
      return TW_UINT16;
    case tf::DT_UINT32:
      return TW_UINT32;
    case tf::DT_UINT64:
      return TW_UINT64;
    default:
      return std::nullopt;
  }
}

// By the kernels that TensorFlow would merge and finish with; no kernel is the identity.
std::optional<int> reduction_of(const tf::CollectiveParams& parameters) {
  if (!parameters.merge_op) return std::nullopt;
  const std::string merge = parameters.merge_op->type_string();
  const std::string final = parameters.final_op ? parameters.final_op->type_string() : "";
  if (merge == "Add" || merge == "AddV2") {
    if (final.empty()) return TW_SUM;
    if (final == "Div") return TW_AVERAGE;
    return std::nullopt;
  }
  if (!final.empty()) return std::nullopt;
  if (merge == "Mul") return TW_PRODUCT;
  if (merge == "Min" || merge == "Minimum") return TW_MIN;
  if (merge == "Max" || merge == "Maximum") return TW_MAX;
  return std::nullopt;
}

}  // namespace

std::optional<uint32_t> rank_in(const tf::CollGroupParams& group, const std::string& device) {
  std::set<std::string> tasks;
  std::optional<uint32_t> rank;
  for (const tf::CollGroupMember& member : group.members) {
    if (member.device.device_type() != "CPU" || !tasks.insert(member.task).second)
      return std::nullopt;
    if (member.device.name() == device) rank = static_cast<uint32_t>(tasks.size() - 1);
  }
  return tasks.size() > 1 ? rank : std::nullopt;
}

std::optional<GroupOperation> GroupOperation::of(tf::OpKernelContext* context,
                                                 const tf::CollectiveParams& parameters) {
  GroupOperation made;
  tf::Tensor* const output = context->mutable_output(0);
  if (!output || !tf::DataTypeCanUseMemcpy(output->dtype())) return std::nullopt;
  made.output_ = *output;
  const auto size = static_cast<uint64_t>(parameters.group.group_size);
  switch (parameters.instance.type) {
    case tf::REDUCTION_COLLECTIVE: {
      const std::optional<int> type = type_of(output->dtype());
      const std::optional<int> op = reduction_of(parameters);
      if (!type || !op) return std::nullopt;
      made.kind_ = TW_ALL_REDUCE;
      made.type_ = *type;
      made.op_ = *op;
      made.count_ = static_cast<uint64_t>(output->NumElements());
      break;
    }
    case tf::BROADCAST_COLLECTIVE:
      if (parameters.source_rank < 0) return std::nullopt;
      made.kind_ = TW_BROADCAST;
      made.root_ = parameters.source_rank;
      made.count_ = output->TotalBytes();
      made.gives_ = parameters.is_source;
      break;
    case tf::GATHER_COLLECTIVE:
      made.kind_ = TW_ALL_GATHER;
      made.count_ = output->TotalBytes() / size;
      break;
    case tf::ALL_TO_ALL_COLLECTIVE:
      made.kind_ = TW_ALL_TO_ALL;
      made.count_ = output->TotalBytes() / size;
      break;
    default:
      return std::nullopt;
  }
  if (made.gives_) made.input_ = context->input(0);
  return made;
}

int GroupOperation::run(tw_group* group, tw_status* status) {
  if (kind_ == TW_ALL_TO_ALL) return all_to_all(group, status);
  const void* in = gives_ ? input_.data() : nullptr;
  void* const out = output_.data();
  if (kind_ == TW_BROADCAST) {
    if (in && in != out) core().copy(out, in, output_.TotalBytes());
    in = nullptr;
  }
  const tw_collective operation{kind_, type_, op_, root_, 1.0, count_};
  return core().group_run(group, &operation, in, out, &kForever, status);
}

int GroupOperation::all_to_all(tw_group* group, tw_status* status) {
  // TensorFlow may have made the output of the input's memory.
  std::string copy;
  const void* in = input_.data();
  if (in == output_.data()) {
    copy.assign(input_.tensor_data().data(), input_.TotalBytes());
    in = copy.data();
  }
  std::vector<tw_run> runs;
  for (int rank = 0; rank < core().group_size(group); ++rank)
    runs.push_back({static_cast<uint64_t>(rank) * count_, count_});
  const tw_collective operation{kind_, type_, op_, root_, 1.0, 0};
  return core().group_exchange(group, &operation, in, runs.data(), output_.data(), runs.data(),
                               &kForever, status);
}

}  // namespace tensorwire
