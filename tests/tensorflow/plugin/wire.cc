// SPDX-License-Identifier: Apache-2.0
// What the plugin decodes of a peer's bytes, and what it refuses.
#include "wire.h"

#include <doctest/doctest.h>

#include <cstring>

namespace tensorwire {
namespace wire {
namespace {

using namespace std::string_literals;

bool says(const std::string& sentence, std::string_view words) {
  INFO("'" << sentence << "' should say '" << std::string(words) << "'");
  CHECK(sentence.find(words) != sentence.npos);
  return !sentence.empty();
}

template <class T>
std::string with(std::string bytes, size_t offset, T value) {
  REQUIRE(offset + sizeof value <= bytes.size());
  std::memcpy(&bytes[offset], &value, sizeof value);
  return bytes;
}

TEST_CASE("field: it is found behind fields of all kinds, and the last one counts") {
  // 1: varint 300, 2: fixed64, 3: text "x", 4: fixed32.
  const std::string others = "\x08\xac\x02\x11"s + "12345678" + "\x1a\x01x\x25" + "abcd";
  std::string_view value;
  for (const std::string& message :
       {encode_field(Field::kPeer, "hello"), others + encode_field(Field::kPeer, "hello"),
        encode_field(Field::kPeer, "hello") + others,
        encode_field(Field::kPeer, "older") + others + encode_field(Field::kPeer, "hello") +
            others}) {
    value = {};
    REQUIRE(decode_field(Field::kPeer, message, &value));
    CHECK(value == "hello");
  }
  CHECK_FALSE(decode_field(Field::kPeer, others, &value));
  CHECK_FALSE(decode_field(Field::kPeer, "", &value));
  REQUIRE(decode_field(Field::kPeer, encode_field(Field::kPeer, ""), &value));
  CHECK(value.empty());
  const std::string large(70'000, 'v');
  const std::string message = encode_field(Field::kPeer, large);
  REQUIRE(decode_field(Field::kPeer, message, &value));
  CHECK(value == large);
}

TEST_CASE("field: a message that is cut short anywhere has none, and nothing is read behind it") {
  const std::string message = "\x08\x01"s + encode_field(Field::kPeer, "hello");
  std::string_view value;
  for (size_t length = 0; length < message.size(); ++length) {
    const std::string cut(message, 0, length);
    CHECK_FALSE(decode_field(Field::kPeer, cut, &value));
  }
}

TEST_CASE("field: what is no field of protobuf ends the search") {
  std::string_view value;
  const std::string field = encode_field(Field::kPeer, "hello");
  CHECK_FALSE(decode_field(Field::kPeer, "\x0b"s + field, &value));          // a group
  CHECK_FALSE(decode_field(Field::kPeer, std::string(11, '\xff'), &value));  // a varint without end
  const std::string huge = "\x0a" + std::string(9, '\xff') + "\x01";
  CHECK_FALSE(decode_field(Field::kPeer, huge + field, &value));  // a length of 2^64 - 1
  const std::string before = field + huge;
  REQUIRE(decode_field(Field::kPeer, before, &value));  // what came before it counts
  CHECK(value == "hello");
}

TEST_CASE("request: it comes back as it was sent") {
  Request request;
  request.step = -7;
  request.incarnation = 0x0102030405060708;
  request.key = "/job:a;edge";
  request.device = "/job:a/device:CPU:0";
  const std::string bytes = encode_request(request);
  CHECK(bytes.size() == 24 + request.key.size() + request.device.size());
  Request back;
  CHECK(decode_request(bytes, &back) == "");
  CHECK(back.step == request.step);
  CHECK(back.incarnation == request.incarnation);
  CHECK(back.key == request.key);
  CHECK(back.device == request.device);
  CHECK(decode_request(encode_request({}), &back) == "");
  CHECK(back.key == "");
}

TEST_CASE("request: names have to fill it, and it has a bound") {
  Request request;
  request.key = "abc";
  request.device = "de";
  const std::string good = encode_request(request);
  Request out;
  for (size_t length = 0; length < good.size(); ++length) {
    says(decode_request(std::string(good, 0, length), &out),
         length < 24 ? "cut short" : "do not fill it");
  }
  says(decode_request(good + "x", &out), "do not fill it");
  for (const uint32_t size : {0u, 4u, 6u, 0xffff'ffffu}) {
    says(decode_request(with(good, 16, size), &out), "do not fill it");
    says(decode_request(with(good, 20, size), &out), "do not fill it");
  }
  // Two sizes whose sum is right in 32 bits only.
  says(decode_request(with(with(good, 16, 0xffff'fffeu), 20, 7u), &out), "do not fill it");
  request.key.assign(kMaxRequest - 26, 'k');
  CHECK(decode_request(encode_request(request), &out) == "");
  request.key += 'k';
  says(decode_request(encode_request(request), &out), "a request of 1048577 bytes");
}

TEST_CASE("field: each is found by its own number") {
  const std::string both = encode_field(Field::kPeer, "peer") + encode_field(Field::kGroup, "");
  std::string_view value;
  REQUIRE(decode_field(Field::kPeer, both, &value));
  CHECK(value == "peer");
  REQUIRE(decode_field(Field::kGroup, both, &value));
  CHECK(value.empty());
  CHECK_FALSE(decode_field(Field::kGroup, encode_field(Field::kPeer, "peer"), &value));
}

TEST_CASE("meeting: a request comes back as it was sent, and nothing else is one") {
  MeetingRequest request;
  request.kind = Meeting::kSet;
  request.rank = 2;
  request.size = 3;
  request.session = 0x0102030405060708;
  request.key = "tensorwire/rank/2";
  request.value = "v\0w"s;
  const std::string good = encode_meeting_request(request);
  MeetingRequest back;
  CHECK(decode_meeting_request(good, &back) == "");
  CHECK(back.kind == request.kind);
  CHECK(back.rank == 2);
  CHECK(back.size == 3);
  CHECK(back.session == request.session);
  CHECK(back.key == request.key);
  CHECK(back.value == request.value);
  for (size_t length = 0; length < good.size(); ++length) {
    says(decode_meeting_request(std::string(good, 0, length), &back),
         length < 32 ? "cut short" : "do not fill it");
  }
  says(decode_meeting_request(good + "x", &back), "do not fill it");
  says(decode_meeting_request(with(good, 0, uint32_t{4}), &back), "of kind 4");
  says(decode_meeting_request(with(good, 4, uint32_t{3}), &back), "rank 3 of 3");
  says(decode_meeting_request(with(good, 8, uint32_t{0}), &back), "rank 2 of 0");
  says(decode_meeting_request(with(good, 20, uint32_t{1}), &back), "rank 2 of 3");
  says(decode_meeting_request(with(with(good, 12, 0xffff'ffffu), 16, 22u), &back),
       "do not fill it");
  request.value.assign(kMaxRequest, 'v');
  says(decode_meeting_request(encode_meeting_request(request), &back), "a request of");
}

TEST_CASE("session and turn: they come back as they were sent, and nothing else is one") {
  uint64_t session = 0;
  CHECK(decode_session(encode_session(77), &session) == "");
  CHECK(session == 77);
  says(decode_session("1234567", &session), "7 bytes");
  Turn turn, back;
  turn.kind = TurnKind::kRun;
  turn.ticket = 9;
  turn.key = {1, 2};
  const auto bytes = encode_turn(turn);
  const std::string good(bytes.data(), bytes.size());
  CHECK(decode_turn(good, &back) == "");
  CHECK(back.kind == TurnKind::kRun);
  CHECK(back.ticket == 9);
  CHECK(back.key == turn.key);
  says(decode_turn(good + "x", &back), "33 bytes");
  says(decode_turn(std::string(good, 0, 31), &back), "31 bytes");
  says(decode_turn(with(good, 0, uint32_t{2}), &back), "of kind 2");
  says(decode_turn(with(good, 4, uint32_t{1}), &back), "of kind 1");
}

Head raw(std::initializer_list<int64_t> sizes) {
  Head head;
  head.dtype = 1;
  for (const int64_t size : sizes) head.sizes[head.rank++] = size;
  return head;
}

TEST_CASE("head: it comes back as it was sent") {
  for (Head head :
       {raw({}), raw({0}), raw({3}), raw({2, 0, 5}), raw({1 << 20, 1 << 20, 1 << 20})}) {
    head.dead = head.rank == 1;
    Head back;
    const std::string bytes = encode_head(head);
    CHECK(bytes.size() == 8u + 8u * head.rank);
    CHECK(decode_head(bytes, &back) == "");
    CHECK(back.form == Form::kRaw);
    CHECK(back.dead == head.dead);
    CHECK(back.dtype == 1);
    REQUIRE(back.rank == head.rank);
    uint64_t elements = 1;
    for (size_t i = 0; i < head.rank; ++i) {
      CHECK(back.sizes[i] == head.sizes[i]);
      elements *= static_cast<uint64_t>(head.sizes[i]);
    }
    CHECK(back.elements == elements);
  }
  Head proto, back;
  proto.form = Form::kProto;
  CHECK(decode_head(encode_head(proto), &back) == "");
  CHECK(back.form == Form::kProto);
  Head largest = raw({});
  largest.rank = kMaxRank;
  largest.sizes.fill(1);
  CHECK(encode_head(largest).size() == kMaxHead);
  CHECK(decode_head(encode_head(largest), &back) == "");
  CHECK(back.elements == 1);
}

TEST_CASE("head: what describes no tensor is refused") {
  const std::string good = encode_head(raw({2, 3}));
  Head out;
  for (size_t length = 0; length < good.size(); ++length) {
    says(decode_head(std::string(good, 0, length), &out), length < 8 ? "cut short" : "its rank");
  }
  says(decode_head(good + "x", &out), "its rank");
  says(decode_head(with(good, 4, uint8_t{3}), &out), "form 3 is unknown");
  says(decode_head(with(good, 4, uint8_t{1}), &out), "form 1 with a type or a shape");
  says(decode_head(with(good, 4, uint8_t{2}), &out), "form 2 with a type or a shape");
  says(decode_head(with(good, 5, uint8_t{2}), &out), "dead is 2");
  says(decode_head(with(good, 6, uint16_t{1}), &out), "its rank");
  says(decode_head(with(good, 6, uint16_t{255}), &out), "rank 255");
  says(decode_head(with(good, 6, uint16_t{0xffff}), &out), "rank 65535");
  says(decode_head(with(good, 8, int64_t{-1}), &out), "a dimension of -1");
  says(decode_head(encode_head(raw({int64_t{1} << 32, int64_t{1} << 31})), &out), "2^63");
  says(decode_head(encode_head(raw({INT64_MAX, INT64_MAX, 0})), &out), "2^63");
  CHECK(decode_head(encode_head(raw({0, INT64_MAX, INT64_MAX})), &out) == "");
  CHECK(out.elements == 0);
}

TEST_CASE("error payload: a type, a zero and a value of any bytes") {
  std::string_view type, value;
  const std::string bytes = encode_error_payload("type.googleapis.com/a", "v\0w"s);
  REQUIRE(decode_error_payload(bytes, &type, &value));
  CHECK(type == "type.googleapis.com/a");
  CHECK(value == "v\0w"s);
  REQUIRE(decode_error_payload("\0"s, &type, &value));
  CHECK(type.empty());
  CHECK(value.empty());
  CHECK_FALSE(decode_error_payload("", &type, &value));
  CHECK_FALSE(decode_error_payload("without one", &type, &value));
}

std::string record(PlanKind kind, uint32_t edge, int64_t step, std::string_view payload) {
  const PlanRecord of{kind, edge, step, payload};
  const auto prefix = encode_plan_prefix(of);
  return std::string(prefix.data(), prefix.size()).append(payload);
}

TEST_CASE("plan: records are taken off one after the other") {
  const std::string bytes = record(PlanKind::kTensor, 7, -3, "tensor") +
                            record(PlanKind::kEnded, 0, 9, "") + record(PlanKind::kWant, 8, 0, "w");
  std::string_view left = bytes;
  PlanRecord out;
  REQUIRE(decode_plan_record(&left, &out) == "");
  CHECK(out.kind == PlanKind::kTensor);
  CHECK(out.edge == 7);
  CHECK(out.step == -3);
  CHECK(out.payload == "tensor");
  REQUIRE(decode_plan_record(&left, &out) == "");
  CHECK(out.kind == PlanKind::kEnded);
  CHECK(out.step == 9);
  CHECK(out.payload.empty());
  REQUIRE(decode_plan_record(&left, &out) == "");
  CHECK(out.payload == "w");
  CHECK(left.empty());
}

TEST_CASE("plan: records that are cut short, of no kind, or with a payload that they do not have") {
  const auto why = [](const std::string& bytes) {
    std::string_view left = bytes;
    PlanRecord out;
    return decode_plan_record(&left, &out);
  };
  const std::string whole = record(PlanKind::kTensor, 1, 2, "abc");
  for (size_t length = 1; length < whole.size(); ++length)
    CHECK(says(why(whole.substr(0, length)), "cut short"));
  CHECK(says(why(with(whole, 0, uint32_t{10})), "kind 10"));
  CHECK(says(why(with(whole, 16, UINT64_MAX)), "cut short"));
  for (const PlanKind kind :
       {PlanKind::kUnwant, PlanKind::kAbort, PlanKind::kAgreed, PlanKind::kWithdrawn,
        PlanKind::kExcluded, PlanKind::kEnded, PlanKind::kSegment, PlanKind::kDead})
    CHECK(says(why(record(kind, 1, 2, "abc")), "with a payload"));
}

TEST_CASE("plan: an edge is a type, a shape and a key") {
  Edge edge;
  edge.head.dtype = 1;
  edge.head.rank = 2;
  edge.head.sizes[0] = 3;
  edge.head.sizes[1] = 5;
  edge.key = "key";
  const std::string bytes = encode_edge(edge);
  Edge out;
  REQUIRE(decode_edge(bytes, &out) == "");
  CHECK(out.key == "key");
  CHECK(out.head.elements == 15);
  for (size_t length = 0; length <= bytes.size() - 3; ++length)
    CHECK(says(decode_edge(bytes.substr(0, length), &out), length < 8 ? "cut" : "without a key"));
  CHECK(says(decode_edge(with(bytes, 4, uint8_t{1}), &out), "type or a shape"));
  CHECK(says(decode_edge(with(bytes, 5, uint8_t{1}), &out), "without bytes"));
  CHECK(says(decode_edge(with(bytes, 6, uint16_t{255}), &out), "without a key"));
  CHECK(says(decode_edge(with(bytes, 8, int64_t{-1}), &out), "dimension of -1"));
}

TEST_CASE("details: they are UTF-8, and cut at the beginning of a character") {
  CHECK(encode_details("") == "");
  const std::string good = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\n";
  CHECK(encode_details(good) == good);
  for (const std::string& none :
       {"\x80"s, "\xff"s, "\xc0"s, "\xc1"s, "\xf5"s, "\xc3"s, "\xe2\x82"s, "\xf0\x9f\x98"s})
    CHECK(encode_details("a" + none + "b") == "a" + std::string(none.size(), '?') + "b");
  // Overlong, a surrogate, above U+10FFFF.
  CHECK(encode_details("\xe0\x9f\x80") == "???");
  CHECK(encode_details("\xed\xa0\x80") == "???");
  CHECK(encode_details("\xf0\x8f\x80\x80") == "????");
  CHECK(encode_details("\xf4\x90\x80\x80") == "????");
  for (size_t before : {3996, 3997, 3998, 3999, 4000, 4001}) {
    const std::string long_one = std::string(before, 'x') + "\xf0\x9f\x98\x80" + "y";
    const std::string encoded = encode_details(long_one);
    CHECK(encoded == long_one.substr(0, before == 3996 ? 4000 : std::min<size_t>(before, 4000)));
  }
}

}  // namespace
}  // namespace wire
}  // namespace tensorwire
