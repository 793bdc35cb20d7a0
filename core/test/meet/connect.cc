// SPDX-License-Identifier: Apache-2.0
// What two processes need to have in common, before one of them connects.
#include "meet/connect.h"

#include <doctest/doctest.h>

namespace tw::test {
namespace {

wire::Hello hello(uint16_t lowest, uint16_t highest, uint64_t required = 0) {
  wire::Hello out;
  out.lowest_version = lowest;
  out.highest_version = highest;
  out.required = required;
  out.features |= required;
  return out;
}

TEST_CASE("connect: two ends speak the highest version that both know") {
  const auto version = meet::agreed_version(hello(1, 4), hello(2, 3));
  REQUIRE(version.ok());
  CHECK(*version == 3);
}

TEST_CASE("connect: no version in common, or a feature that one end lacks, is no link") {
  constexpr uint64_t kUnknown = uint64_t{1} << 60;
  for (const auto& [ours, theirs] : {std::pair{hello(1, 1), hello(2, 3)},
                                     {hello(1, 1, kUnknown), hello(1, 1)},
                                     {hello(1, 1), hello(1, 1, kUnknown)}}) {
    const auto version = meet::agreed_version(ours, theirs);
    REQUIRE_FALSE(version.ok());
    CHECK(version.status().code() == Code::kFailedPrecondition);
    // Before the address is looked at, of which there is none.
    if (ours.lowest_version != theirs.lowest_version || theirs.required != 0) {
      meet::Invitation invitation;
      invitation.hello = theirs;
      const auto runtime = Runtime::get();
      REQUIRE(runtime.ok());
      const auto connected = meet::connect(**runtime, invitation, kForever);
      REQUIRE_FALSE(connected.ok());
      CHECK(connected.status().code() == Code::kFailedPrecondition);
    }
  }
}

}  // namespace
}  // namespace tw::test
