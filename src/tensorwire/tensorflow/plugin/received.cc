// SPDX-License-Identifier: Apache-2.0
#include "received.h"

#include <cstring>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "request.h"
#include "statistics.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// Received bytes as they lie. Those on lease belong to their sender, so that no operation takes
// them for its output. What writes to its input in spite of that (InplaceAdd), or to a part of it,
// which TensorFlow takes for memory of its own (an output of Unpack), writes to a private copy of
// the page, which neither the sender nor another tensor out of the same bytes sees.
class ReceivedBuffer final : public tf::TensorBuffer {
 public:
  // `buffer`: separated.
  explicit ReceivedBuffer(tw_buffer* buffer)
      : TensorBuffer(core().buffer_data(buffer)), buffer_(buffer) {}
  ~ReceivedBuffer() override { core().buffer_release(buffer_); }

  size_t size() const override { return core().buffer_size(buffer_); }
  tf::TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return core().buffer_leased(buffer_) == 0; }
  void FillAllocationDescription(tf::AllocationDescription* to) const override {
    to->set_requested_bytes(static_cast<int64_t>(size()));
    to->set_allocated_bytes(static_cast<int64_t>(size()));
    to->set_allocator_name("tensorwire");
  }

 private:
  tw_buffer* const buffer_;
};

bool aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % tf::Allocator::kAllocatorAlignment == 0;
}

void count_received(bool in_place, Transport& by, size_t bytes) {
  Statistics& to = statistics();
  count(in_place ? to.received_in_place : by.received);
  count(in_place ? to.received_in_place_bytes : by.received_bytes, bytes);
  if (!in_place && by.local && bytes >= kSmall) count(to.received_copied);
}

// A segment of the peer's that is to be decoded. The peer may write to what it lends, so that only
// a copy is what was checked.
class Copied {
 public:
  explicit Copied(const tw_segment& from)
      : data_(new (std::nothrow) char[from.size]), size_(from.size) {
    if (data_ && size_ != 0) core().copy(data_.get(), from.data, size_);
  }

  // False: there was no memory for it.
  bool made() const { return data_ != nullptr; }
  absl::string_view bytes() const { return {data_.get(), size_}; }

 private:
  const std::unique_ptr<char[]> data_;
  const size_t size_;
};

absl::Status no_memory(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a received tensor of ", bytes, " bytes"));
}

absl::Status parse(absl::string_view bytes, tf::Allocator* allocator, tf::Tensor* out) {
  tf::TensorProto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      !out->FromProto(allocator, proto))
    return absl::InternalError("the answer is no serialised tensor");
  return absl::OkStatus();
}

}  // namespace

absl::Status receive_bytes(absl::string_view bytes, Transport& by, tf::Allocator* allocator,
                           tf::DataType dtype, const tf::TensorShape& shape, tf::Tensor* out) {
  tf::Tensor copy(allocator, dtype, shape);
  if (!copy.IsInitialized() && !bytes.empty()) return no_memory(bytes.size());
  if (!bytes.empty())
    core().copy(const_cast<char*>(copy.tensor_data().data()), bytes.data(), bytes.size());
  count_received(false, by, bytes.size());
  *out = std::move(copy);
  return absl::OkStatus();
}

absl::Status receive_segment(tw_message* message, size_t index, Transport& by,
                             tf::Allocator* allocator, tf::DataType dtype,
                             const tf::TensorShape& shape, tf::Tensor* out) {
  const tw_segment body = core().message_segment(message, index);
  if (body.size >= kSmall) {
    tw_buffer* const buffer = core().message_buffer(message, index);
    if (!buffer) return no_memory(body.size);
    const bool leased = core().buffer_leased(buffer) != 0;
    if (aligned(body.data) && (!leased || body.size >= kSeparated) &&
        core().buffer_separate(buffer, nullptr) == TW_OK) {
      tf::core::RefCountPtr<tf::TensorBuffer> held(new ReceivedBuffer(buffer));
      *out = tf::Tensor(dtype, shape, std::move(held));
      count_received(leased, by, body.size);
      return absl::OkStatus();
    }
    core().buffer_release(buffer);
    if (leased) count(statistics().received_realigned);
  }
  return receive_bytes({static_cast<const char*>(body.data), body.size}, by, allocator, dtype,
                       shape, out);
}

absl::Status receive_tensor(tw_message* message, Transport& by, tf::Allocator* allocator,
                            Received* out) {
  if (core().message_count(message) != 2)
    return absl::InternalError("the answer has the wrong number of segments");
  const tw_segment first = core().message_segment(message, 0);
  const tw_segment body = core().message_segment(message, 1);
  if (first.size > wire::kMaxHead) return absl::InternalError("the answer's head is too long");
  TensorHead head;
  const Copied described(first);
  if (!described.made()) return no_memory(first.size);
  if (absl::Status status = read_head(described.bytes(), body.size, &head); !status.ok())
    return status;
  out->form = head.form;
  out->dead = head.dead;
  switch (head.form) {
    case wire::Form::kRaw:
      break;
    case wire::Form::kPushed:
      return absl::OkStatus();
    case wire::Form::kProto: {
      count_received(false, by, body.size);
      if (body.size > static_cast<size_t>(INT32_MAX))
        return absl::InternalError("the answer is no serialised tensor");
      const Copied serialized(body);
      return serialized.made() ? parse(serialized.bytes(), allocator, &out->tensor)
                               : no_memory(body.size);
    }
  }
  return receive_segment(message, 1, by, allocator, head.dtype, head.shape, &out->tensor);
}

absl::Status receive_buffer(tw_message* message, tf::Tensor* out) {
  if (core().message_count(message) != 1)
    return absl::InternalError("the answer has the wrong number of segments");
  const tw_segment body = core().message_segment(message, 0);
  const auto to = out->tensor_data();
  if (body.size != to.size())
    return absl::InternalError(absl::StrCat("the peer sent a buffer of ", body.size,
                                            " bytes for one of ", to.size(), " bytes"));
  if (body.size != 0) core().copy(const_cast<char*>(to.data()), body.data, body.size);
  count(statistics().collective_received);
  count(statistics().collective_received_bytes, body.size);
  return absl::OkStatus();
}

}  // namespace tensorwire
