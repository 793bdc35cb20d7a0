// SPDX-License-Identifier: Apache-2.0
#include "engine/baton.h"

#include <doctest/doctest.h>

using namespace tw;

namespace {

// Takes it, and has a waiter take it over. False: there is none, and it is free again. Unchecked:
// clang has no word for a baton that may have been passed on.
bool passes(Baton& baton) TW_UNCHECKED {
  REQUIRE(baton.try_take());
  if (baton.pass_to_waiter()) return true;
  CHECK_FALSE(baton.free());
  return false;
}

}  // namespace

TEST_CASE("baton: a waiter may come back into the queue, and nobody is left in it after all went") {
  Baton baton;
  Event first, second;
  Baton::Waiter one(first), other(second);
  baton.enter(one);
  baton.enter(other);
  baton.leave(one);
  baton.leave(other);

  baton.enter(one);
  baton.leave(one);
  CHECK_FALSE(passes(baton));
}

TEST_CASE("baton: whoever came last is woken to take it") {
  Baton baton;
  Event events[3];
  Baton::Waiter one(events[0]), two(events[1]), three(events[2]);
  for (Baton::Waiter* const waiter : {&one, &two, &three}) baton.enter(*waiter);
  baton.leave(two);
  baton.enter(two);

  const auto woken = [&](const Event& event) {
    const uint32_t before = event.sequence();
    REQUIRE(passes(baton));
    return event.sequence() != before;
  };
  CHECK(woken(events[1]));
  baton.leave(two);
  CHECK(woken(events[2]));
  baton.leave(three);
  CHECK(woken(events[0]));
  baton.leave(one);
}
