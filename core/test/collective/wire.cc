// SPDX-License-Identifier: Apache-2.0
// What ranks that join put into the store, and tell each other; what they read in each other's
// stages.
#include "collective/wire.h"

#include <doctest/doctest.h>

#include <utility>

namespace tw::test {
namespace {

using collective::Algorithm;
using collective::Answer;
using collective::ArrayPlace;
using collective::CollectiveCall;
using collective::CollectiveKind;
using collective::decode_answer;
using collective::decode_call;
using collective::decode_given;
using collective::decode_neighbours;
using collective::decode_place;
using collective::decode_presence;
using collective::decode_stage_place;
using collective::encode_answer;
using collective::encode_call;
using collective::encode_given;
using collective::encode_neighbours;
using collective::encode_place;
using collective::encode_presence;
using collective::encode_stage_place;
using collective::GivenRun;
using collective::Neighbours;
using collective::Presence;
using collective::StagePlace;

wire::Nonce nonce(uint8_t from) {
  wire::Nonce nonce{};
  for (uint8_t& byte : nonce) byte = from++;
  return nonce;
}

TEST_CASE("presence: what was encoded is decoded, and nothing else") {
  const Presence some{wire::local_hello({7, 8, 9}), nonce(1), 5};
  const auto bytes = encode_presence(some);
  const auto found = decode_presence(bytes);
  REQUIRE(found.ok());
  CHECK(*found == some);
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK(decode_presence(std::span(bytes).first(size)).status().code() == Code::kInvalidArgument);
  }
  CHECK(!decode_presence(std::vector<std::byte>(collective::kPresenceSize)).ok());
}

TEST_CASE("word: what was encoded is decoded, and nothing else") {
  using collective::Fate, collective::Word;
  const Word some{3, Fate::kLost, "it was killed"};
  const std::string bytes = collective::encode_word(some);
  CHECK(collective::decode_word(bytes, 4).value() == some);
  CHECK(!collective::decode_word(bytes, 3).ok());  // no such rank
  CHECK(!collective::decode_word(std::string_view(bytes).substr(0, 4), 4).ok());
  CHECK(!collective::decode_word(bytes + std::string(collective::kMostWhy, 'x'), 4).ok());
  std::string spoiled = bytes;
  spoiled[4] = 4;
  CHECK(!collective::decode_word(spoiled, 4).ok());
  const std::string long_why(2 * collective::kMostWhy, 'x');
  const std::string cut = collective::encode_word({0, Fate::kFailed, long_why});
  CHECK(collective::decode_word(cut, 1).value().why.size() == collective::kMostWhy);
}

TEST_CASE("all ranks' bytes: what was encoded is decoded, and nothing else") {
  const std::vector<std::vector<std::byte>> all{{std::byte{1}, std::byte{2}}, {}, {std::byte{3}}};
  const auto bytes = collective::encode_all(all);
  CHECK(collective::decode_all(bytes, 3).value() == all);
  CHECK(!collective::decode_all(bytes, 2).ok());
  CHECK(!collective::decode_all(bytes, 4).ok());
  for (size_t size = 0; size < bytes.size(); ++size)
    CHECK(!collective::decode_all(std::span(bytes).first(size), 3).ok());
}

TEST_CASE("answer: what was encoded is decoded, and nothing else") {
  Answer some;
  some.to = nonce(3);
  some.size = 5;
  some.welcome.secret.fill(5);
  some.welcome.addresses = {"tcp:127.0.0.1:4242", "shm:/tmp/socket"};
  const auto bytes = encode_answer(some);
  const auto found = decode_answer(bytes);
  REQUIRE(found.ok());
  CHECK(found->to == some.to);
  CHECK(found->size == 5);
  CHECK(found->welcome.secret == some.welcome.secret);
  CHECK(found->welcome.addresses == some.welcome.addresses);
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK(!decode_answer(std::span(bytes).first(size)).ok());
  }
}

TEST_CASE("neighbours: what was encoded is decoded") {
  const Neighbours some{
      Algorithm::kRing, true, 0x0123456789abcdef, {0, 1, 3, 7}, {0, 1, 2, 0x0304}};
  const auto bytes = encode_neighbours(some);
  const auto found = decode_neighbours(bytes, 4);
  REQUIRE(found.ok());
  CHECK(*found == some);
}

TEST_CASE("neighbours: another number of ranks, and values that name nothing") {
  auto bytes = encode_neighbours({Algorithm::kNone, false, 7, {0, 1}, {0, 2}});
  CHECK(!decode_neighbours(bytes, 1).ok());
  CHECK(!decode_neighbours(bytes, 3).ok());
  CHECK(!decode_neighbours({}, 0).ok());
  bytes[12] = std::byte{8};
  CHECK(decode_neighbours(bytes, 2).status().code() == Code::kInternal);
  bytes[12] = std::byte{1};
  for (const size_t none : {static_cast<size_t>(Algorithm::kTree), wire::kAlgorithms}) {
    bytes[0] = static_cast<std::byte>(none);
    CHECK(decode_neighbours(bytes, 2).status().code() == Code::kInternal);
  }
}

// Of every size but the right one, it is refused.
template <class Decode>
void check_sizes(std::span<const std::byte> bytes, Decode&& decode) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK(decode(bytes.first(size)).status().code() == Code::kInternal);
  }
}

TEST_CASE("stages: a call that was encoded is decoded, and nothing else") {
  const CollectiveCall some{CollectiveKind::kReduce, DataType::kBfloat16, ReduceOp::kMax, -7, 1000};
  auto bytes = encode_call(some);
  const auto found = decode_call(bytes);
  REQUIRE(found.ok());
  CHECK(*found == some);
  check_sizes(bytes, decode_call);
  for (size_t i = 0; i < 4; ++i) {  // kinds, types, reductions, and what is reserved
    const std::byte before = std::exchange(bytes[i], std::byte{200});
    CHECK(decode_call(bytes).status().code() == Code::kInternal);
    bytes[i] = before;
  }
}

TEST_CASE("stages: the place of a stage that was encoded is decoded, and nothing else") {
  StagePlace some{{42, 0x7fff'0000'1000, {1, 2}}, {7, 4096}, 4096};
  const auto bytes = encode_stage_place(some);
  const auto found = decode_stage_place(bytes);
  REQUIRE(found.ok());
  CHECK(*found == some);
  check_sizes(bytes, decode_stage_place);
  some.offset = 4097;
  CHECK(!decode_stage_place(encode_stage_place(some)).ok());
  some.offset = 0;
  some.mark.pid = -1;
  CHECK(!decode_stage_place(encode_stage_place(some)).ok());
  some.mark.pid = 0;
  CHECK(decode_stage_place(encode_stage_place(some)).ok());
  some.slab.descriptor = -1;
  CHECK(!decode_stage_place(encode_stage_place(some)).ok());
}

TEST_CASE("stages: the place of an array that was encoded is decoded, and nothing else") {
  ArrayPlace some{1, 2, 3, 4, 5, 6, ArrayPlace::kMostDropped, true};
  const auto bytes = encode_place(some);
  const auto found = decode_place(bytes);
  REQUIRE(found.ok());
  CHECK(*found == some);
  CHECK(decode_place(encode_place({}))->in_arena() == false);
  check_sizes(bytes, decode_place);
  some.offset = 4;
  CHECK(!decode_place(encode_place(some)).ok());
  some.offset = 0;
  some.descriptor = -2;
  CHECK(!decode_place(encode_place(some)).ok());
}

TEST_CASE("stages: what a rank gives ends where memory does") {
  const GivenRun some{4096, UINT64_MAX - 4096};
  const auto bytes = encode_given(some);
  const auto found = decode_given(bytes);
  REQUIRE(found.ok());
  CHECK(*found == some);
  check_sizes(bytes, decode_given);
  CHECK(!decode_given(encode_given({4097, UINT64_MAX - 4096})).ok());
  CHECK(!decode_given(encode_given({UINT64_MAX, 0})).ok());
}

}  // namespace
}  // namespace tw::test
