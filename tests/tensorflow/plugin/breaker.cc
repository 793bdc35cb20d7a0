// SPDX-License-Identifier: Apache-2.0
// When the plugin passes links by RDMA over, and for how long.
#include "breaker.h"

#include <doctest/doctest.h>

#include <vector>

namespace tensorwire {
namespace {

enum class Event { kDiedYoung, kDiedOld, kUnreached };
using Events = std::vector<Event>;

// For how many seconds links are passed over after each event, and whether that is news.
struct Pause {
  int seconds;
  bool news = false;
};

void check(const Events& events, const std::vector<Pause>& pauses) {
  Breaker breaker;
  REQUIRE(events.size() == pauses.size());
  for (size_t i = 0; i < events.size(); ++i) {
    CAPTURE(i);
    const Breaker::Clock::time_point before = Breaker::Clock::now();
    switch (events[i]) {
      case Event::kDiedYoung:
        breaker.died(std::chrono::milliseconds(29'999), "fault");
        break;
      case Event::kDiedOld:
        breaker.died(std::chrono::seconds(30), "fault");
        break;
      case Event::kUnreached:
        breaker.unreached("no route");
        break;
    }
    const Breaker::Clock::time_point after = Breaker::Clock::now();
    if (pauses[i].seconds == 0) {
      CHECK(breaker.until() <= after);
    } else {
      CHECK(breaker.until() >= before + std::chrono::seconds(pauses[i].seconds));
      CHECK(breaker.until() <= after + std::chrono::seconds(pauses[i].seconds));
    }
    CHECK(breaker.news() == pauses[i].news);
  }
}

constexpr Event kYoung = Event::kDiedYoung;
constexpr Event kOld = Event::kDiedOld;
constexpr Event kNone = Event::kUnreached;

TEST_CASE("breaker: two links in a row that die young make a pause") {
  check({kYoung}, {{0}});
  check({kYoung, kYoung}, {{0}, {20, true}});
}

TEST_CASE("breaker: a link that lived long forgives what was before it") {
  check({kOld, kOld, kOld}, {{0}, {0}, {0}});
  check({kYoung, kOld, kYoung}, {{0}, {0}, {0}});
  check({kNone, kOld, kNone}, {{10, true}, {0}, {10, true}});
}

TEST_CASE("breaker: a link that cannot be made is a pause at once, doubled up to 300 s") {
  check({kNone, kNone, kNone}, {{10, true}, {20}, {40}});
  check(Events(12, kNone),
        {{10, true}, {20}, {40}, {80}, {160}, {300}, {300}, {300}, {300}, {300}, {300}, {300}});
}

TEST_CASE("breaker: it keeps the last reason") {
  Breaker breaker;
  breaker.unreached("no route");
  CHECK(breaker.why() == "no route");
  breaker.died(std::chrono::seconds(1), "fault");
  CHECK(breaker.why() == "fault");
}

}  // namespace
}  // namespace tensorwire
