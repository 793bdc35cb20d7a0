// SPDX-License-Identifier: Apache-2.0
// What ranks that join put into the store, and tell each other.
#include "collective/wire.h"

#include <doctest/doctest.h>

namespace tw::test {
namespace {

using collective::Algorithm;
using collective::Answer;
using collective::decode_answer;
using collective::decode_neighbours;
using collective::decode_presence;
using collective::encode_answer;
using collective::encode_neighbours;
using collective::encode_presence;
using collective::Neighbours;
using collective::Presence;

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
  const Neighbours some{Algorithm::kRing, 0x0123456789abcdef, {0, 1, 3, 7}, {0, 1, 2, 0x0304}};
  const auto bytes = encode_neighbours(some);
  const auto found = decode_neighbours(bytes, 4);
  REQUIRE(found.ok());
  CHECK(*found == some);
}

TEST_CASE("neighbours: another number of ranks, and values that name nothing") {
  auto bytes = encode_neighbours({Algorithm::kNone, 7, {0, 1}, {0, 2}});
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

}  // namespace
}  // namespace tw::test
