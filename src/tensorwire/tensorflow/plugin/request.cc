// SPDX-License-Identifier: Apache-2.0
#include "request.h"

#include <limits>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

static_assert(wire::kMaxRank == tf::TensorShape::MaxDimensions());

constexpr char kPayloadKey[] = "status-payload-bin";
// Errors are small; what a peer adds to one is bounded here.
constexpr size_t kMaxPayloads = 8;

}  // namespace

wire::Head head_of(tf::DataType dtype, const tf::TensorShape& shape) {
  wire::Head head;
  head.dtype = static_cast<uint32_t>(dtype);
  head.rank = static_cast<uint16_t>(shape.dims());
  for (int i = 0; i < shape.dims(); ++i) head.sizes[i] = shape.dim_size(i);
  return head;
}

absl::Status types_of(const wire::Head& head, tf::DataType* dtype, tf::TensorShape* shape) {
  if (head.dtype > static_cast<uint32_t>(std::numeric_limits<int>::max()) ||
      !tf::DataType_IsValid(static_cast<int>(head.dtype)))
    return absl::InternalError(absl::StrCat("type ", head.dtype, " is unknown"));
  *dtype = static_cast<tf::DataType>(head.dtype);
  // Also refuses references.
  if (!tf::DataTypeCanUseMemcpy(*dtype) || tf::DataTypeSize(*dtype) == 0)
    return absl::InternalError(absl::StrCat(tf::DataTypeString(*dtype), " is no plain type"));
  return tf::TensorShape::BuildTensorShape(absl::MakeConstSpan(head.sizes.data(), head.rank),
                                           shape);
}

std::string write_head(const TensorHead& head) {
  wire::Head out;
  if (head.form == wire::Form::kRaw) out = head_of(head.dtype, head.shape);
  out.form = head.form;
  out.dead = head.dead;
  return wire::encode_head(out);
}

absl::Status read_head(absl::string_view bytes, size_t size, TensorHead* out) {
  const auto wrong = [](absl::string_view why) {
    return absl::InternalError(absl::StrCat("the answer describes no tensor: ", why));
  };
  wire::Head head;
  if (const std::string why = wire::decode_head({bytes.data(), bytes.size()}, &head); !why.empty())
    return wrong(why);
  out->form = head.form;
  out->dead = head.dead;
  if (head.form != wire::Form::kRaw) return absl::OkStatus();
  if (absl::Status status = types_of(head, &out->dtype, &out->shape); !status.ok())
    return wrong(status.message());
  const auto each = static_cast<uint64_t>(tf::DataTypeSize(out->dtype));
  if (size / each != head.elements || size % each != 0)
    return wrong(absl::StrCat(tf::DataTypeString(out->dtype), out->shape.DebugString(), " in ",
                              size, " bytes"));
  return absl::OkStatus();
}

StatusPairs::StatusPairs(const absl::Status& status) {
  if (status.ok()) return;
  values_.reserve(kMaxPayloads);
  status.ForEachPayload([this](absl::string_view url, const absl::Cord& payload) {
    if (values_.size() == kMaxPayloads) return;
    values_.push_back(wire::encode_error_payload({url.data(), url.size()}, std::string(payload)));
    const std::string& value = values_.back();
    pairs_.push_back({kPayloadKey, sizeof kPayloadKey - 1, value.data(), value.size()});
  });
}

void add_payloads(const tw_metadata* metadata, absl::Status* status) {
  core().metadata_each(
      metadata,
      [](void* context, const tw_pair* pair) {
        if (absl::string_view(pair->key, pair->key_size) != kPayloadKey) return;
        std::string_view url, value;
        if (!wire::decode_error_payload({pair->value, pair->value_size}, &url, &value)) return;
        static_cast<absl::Status*>(context)->SetPayload(
            {url.data(), url.size()}, absl::Cord(absl::string_view(value.data(), value.size())));
      },
      status);
}

}  // namespace tensorwire
