// SPDX-License-Identifier: Apache-2.0
// What the TensorFlow plugin decodes: what is accepted encodes to the same bytes again, what is
// refused has a sentence.
#include "fuzz/fuzz.h"
#include "wire.h"

namespace tensorwire {
namespace wire {
namespace {

using tw::fuzz::require;

void require_sentence(const std::string& why) {
  tw::fuzz::require_sentence({tw::Code::kInternal, why});
}

void field(const std::string& bytes) {
  std::string_view value;
  if (!decode_field(Field::kPeer, bytes, &value)) return;
  require(
      value.data() >= bytes.data() && value.data() + value.size() <= bytes.data() + bytes.size(),
      "a value lies in its message");
  const std::string copy(value);
  std::string_view again;
  const std::string twice =
      bytes + encode_field(Field::kPeer, "other") + encode_field(Field::kGroup, "none");
  require(decode_field(Field::kPeer, encode_field(Field::kPeer, copy), &again) && again == copy,
          "it comes back");
  require(decode_field(Field::kPeer, twice, &again), "what is added behind takes nothing away");
}

void request(const std::string& bytes) {
  Request out;
  if (const std::string why = decode_request(bytes, &out); !why.empty())
    return require_sentence(why);
  require(encode_request(out) == bytes, "a request encodes to the same bytes");
}

void head(const std::string& bytes) {
  Head out;
  if (const std::string why = decode_head(bytes, &out); !why.empty()) return require_sentence(why);
  require(bytes.size() <= kMaxHead, "no head is longer");
  require(encode_head(out) == bytes, "a head encodes to the same bytes");
  require(out.elements <= static_cast<uint64_t>(INT64_MAX), "elements can be counted");
  for (size_t i = 0; i < out.rank; ++i) require(out.sizes[i] >= 0, "no size is negative");
}

void error_payload(const std::string& bytes) {
  std::string_view type, value;
  if (!decode_error_payload(bytes, &type, &value)) return;
  require(encode_error_payload(type, value) == bytes, "a payload encodes to the same bytes");
}

void meeting(const std::string& bytes) {
  MeetingRequest out;
  if (const std::string why = decode_meeting_request(bytes, &out); !why.empty())
    return require_sentence(why);
  require(out.rank < out.size, "who asks is a member");
  require(encode_meeting_request(out) == bytes, "a request encodes to the same bytes");
}

void session(const std::string& bytes) {
  uint64_t out;
  if (const std::string why = decode_session(bytes, &out); !why.empty())
    return require_sentence(why);
  require(encode_session(out) == bytes, "a session encodes to the same bytes");
}

void turn(const std::string& bytes) {
  Turn out;
  if (const std::string why = decode_turn(bytes, &out); !why.empty()) return require_sentence(why);
  const auto again = encode_turn(out);
  require(bytes == std::string(again.data(), again.size()), "a turn encodes to the same bytes");
}

void plan(const std::string& bytes) {
  std::string_view left = bytes;
  std::string again;
  while (!left.empty()) {
    PlanRecord out;
    if (const std::string why = decode_plan_record(&left, &out); !why.empty())
      return require_sentence(why);
    require(out.payload.data() + out.payload.size() == left.data(), "payloads follow one another");
    const auto prefix = encode_plan_prefix(out);
    again.append(prefix.data(), prefix.size()).append(out.payload);
    require(bytes.compare(0, again.size(), again) == 0, "a record encodes to the same bytes");
  }
}

void edge(const std::string& bytes) {
  Edge out;
  if (const std::string why = decode_edge(bytes, &out); !why.empty()) return require_sentence(why);
  require(out.head.form == Form::kRaw && !out.head.dead, "an edge has tensors with bytes");
  require(!out.key.empty(), "an edge has a key");
  require(encode_edge(out) == bytes, "an edge encodes to the same bytes");
}

void one(tw::fuzz::Input input) {
  const uint8_t choice = input.byte();
  const tw::fuzz::Bytes rest = input.rest();
  std::string bytes(reinterpret_cast<const char*>(rest.data()), rest.size());
  bytes.shrink_to_fit();
  switch (choice % 9) {
    case 0:
      return field(bytes);
    case 1:
      return request(bytes);
    case 2:
      return head(bytes);
    case 3:
      return error_payload(bytes);
    case 4:
      return meeting(bytes);
    case 5:
      return session(bytes);
    case 6:
      return turn(bytes);
    case 7:
      return plan(bytes);
    case 8:
      return edge(bytes);
  }
}

}  // namespace
}  // namespace wire
}  // namespace tensorwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tensorwire::wire::one({data, size});
  return 0;
}
