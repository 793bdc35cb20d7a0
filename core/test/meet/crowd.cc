// SPDX-License-Identifier: Apache-2.0
#include "meet/crowd.h"

#include <doctest/doctest.h>

namespace tw::meet {
namespace {

using People = Crowd<const char*>;
using Stage = People::Stage;

TEST_CASE("crowd: nobody has to go from a place where nobody is") {
  People people(2);
  CHECK(people.victim() == nullptr);
  CHECK_FALSE(people.full());
  people.leave("x");
  CHECK(people.size() == 0);
}

TEST_CASE("crowd: the greediest source loses first, the least far of it, and the oldest of these") {
  People people(5);
  const char *modest = "modest", *a = "a", *b = "b", *c = "c", *d = "d";
  people.enter(modest, "ipv4:192.0.2.1");
  people.enter(a, "ipv4:192.0.2.2");
  people.enter(b, "ipv4:192.0.2.2");
  people.enter(c, "ipv4:192.0.2.2");
  people.enter(d, "ipv4:192.0.2.2");
  CHECK(people.full());
  CHECK(people.victim() == a);
  people.advance(a, Stage::kSpoke);
  CHECK(people.victim() == b);
  people.advance(b, Stage::kProved);
  people.advance(c, Stage::kProved);
  people.advance(d, Stage::kProved);
  CHECK(people.victim() == a);
  people.leave(a);
  CHECK(people.victim() == b);
  CHECK(people.victim(Stage::kSilent) == modest);
  // Equals in number.
  people.leave(b);
  people.leave(c);
  CHECK(people.victim() == modest);
  people.advance(modest, Stage::kProved);
  CHECK(people.victim() == modest);
  CHECK(people.victim(Stage::kSpoke) == nullptr);
}

}  // namespace
}  // namespace tw::meet
