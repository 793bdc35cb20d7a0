// SPDX-License-Identifier: Apache-2.0
#include "meet/crowd.h"

#include <doctest/doctest.h>

namespace tw::meet {
namespace {

using People = Crowd<const char*>;
using Standing = People::Standing;

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
  people.advance(a, Standing::kSpoke);
  CHECK(people.victim() == b);
  people.advance(b, Standing::kProved);
  people.advance(c, Standing::kProved);
  people.advance(d, Standing::kProved);
  CHECK(people.victim() == a);
  people.leave(a);
  CHECK(people.victim() == b);
  CHECK(people.victim(Standing::kSilent) == modest);
  // Equals in number.
  people.leave(b);
  people.leave(c);
  CHECK(people.victim() == modest);
  people.advance(modest, Standing::kProved);
  CHECK(people.victim() == modest);
  CHECK(people.victim(Standing::kSpoke) == nullptr);
}

}  // namespace
}  // namespace tw::meet
