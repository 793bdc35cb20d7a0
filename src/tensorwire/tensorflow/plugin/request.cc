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

std::string write_head(const TensorHead& head) {
  wire::Head out;
  out.form = head.form;
  out.dead = head.dead;
  if (head.form == wire::Form::kRaw) {
    out.dtype = static_cast<uint32_t>(head.dtype);
    out.rank = static_cast<uint16_t>(head.shape.dims());
    for (int i = 0; i < head.shape.dims(); ++i) out.sizes[i] = head.shape.dim_size(i);
  }
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
  if (head.form == wire::Form::kProto) return absl::OkStatus();

  if (head.dtype > static_cast<uint32_t>(std::numeric_limits<int>::max()) ||
      !tf::DataType_IsValid(static_cast<int>(head.dtype)))
    return wrong(absl::StrCat("type ", head.dtype, " is unknown"));
  out->dtype = static_cast<tf::DataType>(head.dtype);
  // Also refuses references.
  if (!tf::DataTypeCanUseMemcpy(out->dtype))
    return wrong(absl::StrCat(tf::DataTypeString(out->dtype), " is no plain type"));
  if (absl::Status status = tf::TensorShape::BuildTensorShape(
          absl::MakeConstSpan(head.sizes.data(), head.rank), &out->shape);
      !status.ok())
    return wrong(status.message());
  const auto each = static_cast<uint64_t>(tf::DataTypeSize(out->dtype));
  if (each == 0 || size / each != head.elements || size % each != 0)
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
