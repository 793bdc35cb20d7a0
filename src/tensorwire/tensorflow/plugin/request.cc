// SPDX-License-Identifier: Apache-2.0
#include "request.h"

#include <cstring>
#include <limits>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

struct RequestHead {
  int64_t step;
  uint64_t incarnation;
  uint32_t key_size;
  uint32_t device_size;
};
static_assert(sizeof(RequestHead) == 24);

struct HeadPrefix {
  uint32_t dtype;
  uint8_t form;
  uint8_t dead;
  uint16_t rank;
};
static_assert(sizeof(HeadPrefix) == 8);
static_assert(sizeof(HeadPrefix) + tf::TensorShape::MaxDimensions() * sizeof(int64_t) < kMaxHead);

constexpr char kPayloadKey[] = "status-payload-bin";
// Errors are small; what a peer adds to one is bounded here.
constexpr size_t kMaxPayloads = 8;

}  // namespace

std::string encode_request(const Request& request) {
  const RequestHead head{request.step, request.incarnation,
                         static_cast<uint32_t>(request.key.size()),
                         static_cast<uint32_t>(request.device.size())};
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&head), sizeof head),
                      request.key, request.device);
}

absl::Status decode_request(absl::string_view bytes, Request* out) {
  RequestHead head;
  if (bytes.size() < sizeof head) return absl::InvalidArgumentError("the request is cut short");
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes.remove_prefix(sizeof head);
  if (head.key_size > bytes.size() || bytes.size() - head.key_size != head.device_size)
    return absl::InvalidArgumentError("the request's names do not fill it");
  out->step = head.step;
  out->incarnation = head.incarnation;
  out->key = std::string(bytes.substr(0, head.key_size));
  out->device = std::string(bytes.substr(head.key_size));
  return absl::OkStatus();
}

std::string encode_head(const TensorHead& head) {
  const int rank = head.form == Form::kRaw ? head.shape.dims() : 0;
  const HeadPrefix prefix{static_cast<uint32_t>(head.dtype), static_cast<uint8_t>(head.form),
                          head.dead, static_cast<uint16_t>(rank)};
  std::string out(reinterpret_cast<const char*>(&prefix), sizeof prefix);
  for (int i = 0; i < rank; ++i) {
    const int64_t size = head.shape.dim_size(i);
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  return out;
}

absl::Status decode_head(absl::string_view bytes, size_t size, TensorHead* out) {
  const auto wrong = [](absl::string_view why) {
    return absl::InternalError(absl::StrCat("the answer describes no tensor: ", why));
  };
  HeadPrefix prefix;
  if (bytes.size() < sizeof prefix) return wrong("its head is cut short");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  bytes.remove_prefix(sizeof prefix);
  if (prefix.form > static_cast<uint8_t>(Form::kProto)) return wrong("unknown form");
  out->form = static_cast<Form>(prefix.form);
  out->dead = prefix.dead != 0;
  if (bytes.size() != prefix.rank * sizeof(int64_t))
    return wrong("its rank is not that of its shape");
  if (out->form == Form::kProto) return absl::OkStatus();

  if (prefix.dtype > static_cast<uint32_t>(std::numeric_limits<int>::max()) ||
      !tf::DataType_IsValid(static_cast<int>(prefix.dtype)))
    return wrong(absl::StrCat("type ", prefix.dtype, " is unknown"));
  out->dtype = static_cast<tf::DataType>(prefix.dtype);
  // Also refuses references.
  if (!tf::DataTypeCanUseMemcpy(out->dtype))
    return wrong(absl::StrCat(tf::DataTypeString(out->dtype), " is no plain type"));
  int64_t dims[tf::TensorShape::MaxDimensions()];
  if (prefix.rank > tf::TensorShape::MaxDimensions())
    return wrong(absl::StrCat("rank ", prefix.rank));
  std::memcpy(dims, bytes.data(), bytes.size());
  // Refuses negative sizes and products beyond 63 bits.
  if (absl::Status status =
          tf::TensorShape::BuildTensorShape(absl::MakeConstSpan(dims, prefix.rank), &out->shape);
      !status.ok())
    return wrong(status.message());
  const auto count = static_cast<uint64_t>(out->shape.num_elements());
  const auto each = static_cast<uint64_t>(tf::DataTypeSize(out->dtype));
  if (each == 0 || size / each != count || size % each != 0)
    return wrong(absl::StrCat(tf::DataTypeString(out->dtype), out->shape.DebugString(), " in ",
                              size, " bytes"));
  return absl::OkStatus();
}

StatusPairs::StatusPairs(const absl::Status& status) {
  if (status.ok()) return;
  values_.reserve(kMaxPayloads);
  status.ForEachPayload([this](absl::string_view url, const absl::Cord& payload) {
    if (values_.size() == kMaxPayloads) return;
    values_.push_back(absl::StrCat(url, absl::string_view("\0", 1), std::string(payload)));
    const std::string& value = values_.back();
    pairs_.push_back({kPayloadKey, sizeof kPayloadKey - 1, value.data(), value.size()});
  });
}

void add_payloads(const tw_metadata* metadata, absl::Status* status) {
  core().metadata_each(
      metadata,
      [](void* context, const tw_pair* pair) {
        if (absl::string_view(pair->key, pair->key_size) != kPayloadKey) return;
        const absl::string_view value(pair->value, pair->value_size);
        const size_t end = value.find('\0');
        if (end == value.npos) return;
        static_cast<absl::Status*>(context)->SetPayload(value.substr(0, end),
                                                        absl::Cord(value.substr(end + 1)));
      },
      status);
}

}  // namespace tensorwire
