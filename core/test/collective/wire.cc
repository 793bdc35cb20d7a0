// SPDX-License-Identifier: Apache-2.0
// What ranks that join tell each other.
#include "collective/wire.h"

#include <doctest/doctest.h>

namespace tw::test {
namespace {

using collective::Algorithm;
using collective::decode_neighbours;
using collective::encode_neighbours;
using collective::Neighbours;

TEST_CASE("neighbours: what was encoded is decoded") {
  const Neighbours some{Algorithm::kRing, 0x0123456789abcdef, {0, 1, 3, 7}};
  const auto bytes = encode_neighbours(some);
  const auto found = decode_neighbours(bytes, 4);
  REQUIRE(found.ok());
  CHECK(*found == some);
}

TEST_CASE("neighbours: another number of ranks, and values that name nothing") {
  auto bytes = encode_neighbours({Algorithm::kNone, 7, {0, 1}});
  CHECK(!decode_neighbours(bytes, 1).ok());
  CHECK(!decode_neighbours(bytes, 3).ok());
  CHECK(!decode_neighbours({}, 0).ok());
  bytes[10] = std::byte{8};
  CHECK(decode_neighbours(bytes, 2).status().code() == Code::kInternal);
  bytes[10] = std::byte{1};
  bytes[0] = std::byte{wire::kAlgorithms};
  CHECK(decode_neighbours(bytes, 2).status().code() == Code::kInternal);
}

}  // namespace
}  // namespace tw::test
