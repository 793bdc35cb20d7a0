// SPDX-License-Identifier: Apache-2.0
#include "meet/crowd.h"

#include <doctest/doctest.h>

#include <string>

#include "base/shortage.h"
#include "test/not_tried.h"
#include "test/shortage.h"

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

TEST_CASE("crowd: without memory nobody has come, and no source has more for it") {
  if (!test::kFailsOnDemand)
    return test::not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  const char *first = "first", *second = "second", *a = "a", *b = "b";
  bool failed = true;
  for (int n = 1; failed; ++n) {
    CAPTURE(n);
    People people(9);
    people.enter(first, "ipv4:192.0.2.1");
    people.enter(second, "ipv4:192.0.2.1");
    const std::string source = "ipv4:192.0.2.2";
    test::Failing failing(n);
    const bool came = has_memory_for([&] { people.enter(a, source); });
    failed = failing.end();
    CHECK(people.size() == (came ? 3 : 2));
    if (!came) people.enter(a, source);
    people.enter(b, source);
    CHECK(people.victim() == first);  // of two sources with as many
  }
}

}  // namespace
}  // namespace tw::meet
