// SPDX-License-Identifier: Apache-2.0
// What a rank that waits tells the others, and when.
#include "collective/agreement.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "collective/members.h"
#include "test/collective/ranks.h"

namespace tw::test {
namespace {

using collective::Agreement;
using collective::Members;
using collective::NumberedCall;

NumberedCall barrier(uint64_t sequence) {
  return {sequence, {CollectiveKind::kBarrier, DataType::kUint8, ReduceOp::kSum, 0, 0}};
}

TEST_CASE("agreement: each operation is told once to those that there are links with") {
  Agreement agreement(4);
  CHECK_FALSE(agreement.untold(2));
  agreement.begin(barrier(1));
  REQUIRE(agreement.untold(2));
  CHECK_FALSE(agreement.untold(2));
  // One more is to hear of it, too.
  CHECK(agreement.untold(3)->sequence == 1);
  CHECK_FALSE(agreement.untold(3));
  agreement.end();
  agreement.begin(barrier(2));
  CHECK(agreement.untold(3)->sequence == 2);
}

TEST_CASE("agreement: of an operation that is over nobody is told, and it is compared still") {
  Agreement agreement(2);
  agreement.begin(barrier(1));
  agreement.end();
  CHECK_FALSE(agreement.untold(1));
  NumberedCall other = barrier(1);
  other.call.kind = CollectiveKind::kBroadcast;
  agreement.heard(1, other);
  CHECK(agreement.odd()->rank == 1);
}

TEST_CASE("agreement: who is woken in vain has not waited for long") {
  as_ranks(1, [](Group& group) -> std::string {
    int woken = 0, looks = 0;
    Nanos first = 0;
    const Nanos begun = now();
    const Status status = wait_and_look(
        group.members(), within(kLong),
        [&](Nanos until) {
          if (++woken < 1000) return false;
          std::this_thread::sleep_for(std::chrono::nanoseconds(until - now()));
          return looks >= 2;
        },
        [&] {
          if (++looks == 1) first = now() - begun;
          return Status();
        });
    if (!status.ok()) return "it was not woken";
    return first >= Members::kSlice ? "" : "it looked at once";
  });
}

}  // namespace
}  // namespace tw::test
