// SPDX-License-Identifier: Apache-2.0
// What workers with the plugin say to each other inside TensorFlow's messages and in calls of the
// runtime, as bytes. The plugin decodes nothing that a peer chose but here; needs no TensorFlow.
//
// Who decodes says why the bytes are none, in a sentence; empty: they are good.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorwire {
namespace wire {

// ---- a field of ours in a serialised protobuf message that does not know it ----

std::string encode_field(std::string_view value);
// The last one, as protobuf takes it; a view of `message`. False: there is none.
bool decode_field(std::string_view message, std::string_view* value);

// ---- requests ----

struct Request {
  int64_t step = 0;
  uint64_t incarnation = 0;  // of the device, for a buffer only
  std::string key;
  std::string device;  // for a buffer only
};

// A longer one is refused.
inline constexpr size_t kMaxRequest = 1 << 20;
std::string encode_request(const Request& request);
std::string decode_request(std::string_view bytes, Request* out);

// ---- descriptions of tensors ----

// How the bytes of a tensor travel.
enum class Form : uint8_t {
  kRaw = 0,    // as they lie in memory
  kProto = 1,  // a serialised TensorProto: strings, variants, resources
};

inline constexpr size_t kMaxRank = 254;  // TensorFlow's
inline constexpr size_t kMaxHead = 8 + kMaxRank * sizeof(int64_t);

struct Head {
  Form form = Form::kRaw;
  bool dead = false;
  // kRaw only:
  uint32_t dtype = 0;  // by TensorFlow's numbers, any
  uint16_t rank = 0;
  uint64_t elements = 1;                // the product of all sizes; decode_head sets it
  std::array<int64_t, kMaxRank> sizes;  // `rank` of them, none negative; the others are not set
};

std::string encode_head(const Head& head);
std::string decode_head(std::string_view bytes, Head* out);

// ---- what an error carries beside its code and details ----

std::string encode_error_payload(std::string_view type, std::string_view value);
// Views of `bytes`. False: it is none.
bool decode_error_payload(std::string_view bytes, std::string_view* type, std::string_view* value);

}  // namespace wire
}  // namespace tensorwire
