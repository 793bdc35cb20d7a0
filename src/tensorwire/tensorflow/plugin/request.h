// SPDX-License-Identifier: Apache-2.0
// What one worker asks another for, and how a tensor is described in the answer. Both ends are
// plugins of the same package, but everything that a peer chose is checked in full.
//
// A call has one of the methods below. Its request is one segment: a RequestHead, a rendezvous key
// and, for a buffer, the name of its device. The answer to kRecvTensor has two segments, a head and
// the tensor's bytes; that to kRecvBuf has one, the buffer's bytes. A call that fails carries the
// payloads of its absl::Status as metadata.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tensorwire {

inline constexpr absl::string_view kRecvTensor = "/tensorwire.TensorFlow/RecvTensor";
inline constexpr absl::string_view kRecvBuf = "/tensorwire.TensorFlow/RecvBuf";

struct Request {
  int64_t step = 0;
  uint64_t incarnation = 0;  // of the device, kRecvBuf only
  std::string key;
  std::string device;  // kRecvBuf only
};

std::string encode_request(const Request& request);
// INVALID_ARGUMENT.
absl::Status decode_request(absl::string_view bytes, Request* out);

// How the bytes of a tensor travel.
enum class Form : uint8_t {
  kRaw = 0,    // as they lie in memory
  kProto = 1,  // a serialised TensorProto: strings, variants, resources
};

struct TensorHead {
  Form form = Form::kRaw;
  bool dead = false;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;  // kRaw only, like the shape
  tensorflow::TensorShape shape;
};

// An encoded head is shorter.
inline constexpr size_t kMaxHead = 4096;
std::string encode_head(const TensorHead& head);
// `size`: bytes of the tensor's segment, which a kRaw head has to account for. INTERNAL.
absl::Status decode_head(absl::string_view bytes, size_t size, TensorHead* out);

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
