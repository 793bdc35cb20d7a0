// SPDX-License-Identifier: Apache-2.0
#include "route/route.h"

#include <doctest/doctest.h>

#include "test/route/candidates.h"

namespace tw::route {
namespace {

using Use = Route::Use;
using Failure = Route::Failure;

constexpr Pauses kPauses;
constexpr Nanos kStart = 1000 * kSecond;

Route make(Policy policy = {}) { return Route(kCandidates, std::move(policy), "other", 1); }
Policy without_fallback() { return {"", {"other"}, ""}; }

// Consults a route that has nothing but an attempt to advise, and makes it.
void begin(Route& route, Nanos now) { REQUIRE(route.consult(now).begin); }

// The longest that a pause may be, with its jitter.
constexpr Nanos most(Nanos pause) { return pause / 100 * 120; }
constexpr Nanos least(Nanos pause) { return pause / 100 * 80; }

// How long after `now` the route advises the next attempt.
Nanos pause(Route& route, Nanos now) { return route.consult(now).retry - now; }

TEST_CASE("route: the first attempt is worth waiting for, and one makes it") {
  Route route = make();
  const auto first = route.consult(kStart);
  CHECK(first.use == Use::kAttempt);
  CHECK(first.begin);
  for (int other = 0; other < 3; ++other) {
    const auto advice = route.consult(kStart + kSecond);
    CHECK(advice.use == Use::kAttempt);
    CHECK_FALSE(advice.begin);
  }
  route.linked("near", kStart + 2 * kSecond);
  const auto linked = route.consult(kStart + 2 * kSecond);
  CHECK(linked.use == Use::kLink);
  CHECK_FALSE(linked.begin);
}

TEST_CASE("route: after an attempt that failed calls take the fallback, and the next comes later") {
  Route route = make();
  Nanos now = kStart;
  Nanos expected = kPauses.first;
  for (int failures = 1; failures < 12; ++failures) {
    begin(route, now);
    route.failed(Failure::kUnreached, now);
    CHECK(route.failures() == failures);
    const auto advice = route.consult(now);
    CHECK(advice.use == Use::kFallback);
    CHECK_FALSE(advice.begin);
    CHECK(advice.retry - now >= least(expected));
    CHECK(advice.retry - now <= most(expected));
    expected = std::min(2 * expected, kPauses.longest);
    now = advice.retry;
  }
  const auto later = route.consult(now);
  CHECK(later.begin);
  CHECK(later.use == Use::kFallback);
  CHECK(route.consult(now).use == Use::kFallback);
}

TEST_CASE("route: without a fallback calls wait for each attempt, and fail between them") {
  Route route = make(without_fallback());
  Nanos now = kStart;
  for (int failures = 1; failures < 12; ++failures) {
    const auto advice = route.consult(now);
    CHECK(advice.begin);
    CHECK(advice.use == Use::kAttempt);
    CHECK(route.consult(now).use == Use::kAttempt);
    route.failed(Failure::kUnreached, now);
    const auto meanwhile = route.consult(now);
    CHECK(meanwhile.use == Use::kNothing);
    CHECK(meanwhile.retry - now <= most(kPauses.longest_without));
    now = meanwhile.retry;
  }
}

TEST_CASE("route: what each failure means for the next attempt") {
  Route route = make();
  begin(route, kStart);
  SUBCASE("one that was not made") {
    route.failed(Failure::kWithdrawn, kStart);
    CHECK(route.consult(kStart).begin);
  }
  SUBCASE("a refusal of who asked") {
    route.failed(Failure::kRefused, kStart);
    const auto advice = route.consult(kStart);
    CHECK(advice.begin);
    CHECK(advice.use == Use::kAttempt);
  }
  SUBCASE("a peer that does not answer is asked again soon, however often") {
    Nanos now = kStart;
    for (int failures = 0; failures < 10; ++failures) {
      route.failed(Failure::kUnanswered, now);
      CHECK(pause(route, now) <= most(kPauses.longest_without));
      now += most(kPauses.longest_without);
      begin(route, now);
    }
  }
  SUBCASE("a peer that can have no link") {
    route.failed(Failure::kDeclined, kStart);
    CHECK(pause(route, kStart) == kPauses.longest);
    const auto advice = route.consult(kStart + kPauses.longest);
    CHECK(advice.begin);
    CHECK(advice.use == Use::kFallback);
  }
  SUBCASE("an attempt that needs no other") {
    route.failed(Failure::kFinal, kStart);
    CHECK_FALSE(route.consult(kForever - 1).begin);
  }
}

TEST_CASE("route: a link that lived well is attempted anew at once, and its successor awaited") {
  Route route = make();
  begin(route, kStart);
  route.linked("plain", kStart);
  route.lost("gone", kStart + Route::kSteady);
  const auto advice = route.consult(kStart + Route::kSteady);
  CHECK(advice.begin);
  CHECK(advice.use == Use::kAttempt);
}

TEST_CASE("route: links that keep dying young are not made at full speed") {
  Route route = make();
  Nanos now = kStart;
  begin(route, now);
  route.linked("plain", now);
  route.lost("gone", now);
  begin(route, now);  // the first may have met a peer that was just leaving
  route.linked("plain", now);
  route.lost("gone", now);
  CHECK(route.consult(now).use == Use::kFallback);
  CHECK(pause(route, now) >= least(kPauses.first));
  route.lost("gone", now);  // nobody loses it twice
  CHECK(route.failures() == 1);
}

TEST_CASE("route: a link that is lost while a better one is sought has its attempt already") {
  Route route = make();
  begin(route, kStart);
  const std::vector<Reason> unreached = {{"fast", "no answer"}};
  route.unreached(unreached, kStart);
  route.linked("plain", kStart);
  const Nanos later = route.better_from();
  CHECK(later > kStart);
  CHECK(later <= kStart + most(Breaker::kFirstPause));
  CHECK_FALSE(route.consult(later - 1).begin);
  const auto better = route.consult(later);
  CHECK(better.use == Use::kLink);
  CHECK(better.begin);
  CHECK_FALSE(route.consult(later).begin);
  route.lost("gone", later);
  const auto advice = route.consult(later);
  CHECK(advice.use == Use::kAttempt);
  CHECK_FALSE(advice.begin);
  route.linked("fast", later);
  CHECK(route.consult(later).use == Use::kLink);
  CHECK(route.better_from() == kForever);
}

TEST_CASE("route: while a better link cannot be had the present one stays") {
  Route route = make();
  begin(route, kStart);
  const std::vector<Reason> unreached = {{"fast", "no answer"}};
  route.unreached(unreached, kStart);
  route.linked("plain", kStart);
  const Nanos later = route.better_from();
  const Plan plan = route.plan(later);
  REQUIRE(plan.transports.size() == 2);
  CHECK(plan.transports[1].name == "fast");
  CHECK(plan.passed_over.empty());
  begin(route, later);
  SUBCASE("it is sought again") {
    route.unreached(unreached, later);
    route.failed(Failure::kUnreached, later);
    CHECK(route.better_from() >= later + kPauses.longest);
    CHECK(route.consult(later).use == Use::kLink);
    CHECK(route.failures() == 0);
  }
  SUBCASE("it never will be") {
    route.failed(Failure::kFinal, later);
    CHECK(route.better_from() == kForever);
  }
}

TEST_CASE("route: a fragile transport whose links keep dying young is passed over, and told once") {
  Route route = make();
  Nanos now = kStart;
  for (int link = 0; link < Breaker::kEnough; ++link) {
    CHECK_FALSE(route.news(now));
    CHECK(route.plan(now).passed_over.empty());
    begin(route, now);
    route.linked("fast", now);
    route.lost("retries exceeded", now += kSecond);
  }
  CHECK(route.consult(now).use == Use::kAttempt);  // the next best way, at once
  const Plan plan = route.plan(now);
  REQUIRE(plan.passed_over.size() == 1);
  CHECK(plan.passed_over[0].transport == "fast");
  CHECK(plan.passed_over[0].why ==
        "passed over for a while, because its links fail: retries exceeded");
  const auto news = route.news(now);
  REQUIRE(news);
  CHECK(news->transport == "fast");
  CHECK(news->until > now);
  CHECK_FALSE(route.news(now));
  CHECK(route.plan(news->until).passed_over.empty());
}

TEST_CASE("route: the only way is never passed over") {
  Route route = make({"fast", {}, "a test"});
  for (int link = 0; link < 5; ++link) {
    Nanos now = kStart + link * kSecond * 10;
    begin(route, now);
    route.linked("fast", now);
    route.lost("retries exceeded", now);
    CHECK(route.plan(now).passed_over.empty());
    CHECK_FALSE(route.news(now));
  }
}

TEST_CASE("breaker: a link that lived well closes it") {
  Backoff backoff(1);
  Breaker breaker;
  CHECK_FALSE(breaker.died(kSecond, "first", backoff, kStart));
  CHECK(breaker.died(kSecond, "second", backoff, kStart));
  CHECK(breaker.why() == "second");
  CHECK(breaker.news(kStart));
  CHECK_FALSE(breaker.news(kStart));
  CHECK_FALSE(breaker.died(Breaker::kSteady, "third", backoff, kStart));
  CHECK_FALSE(breaker.open(kStart));
  breaker.unreached("fourth", backoff, kStart);
  CHECK(breaker.open(kStart));
  CHECK(breaker.news(kStart));
}

TEST_CASE("breaker: its pauses double up to five minutes") {
  Backoff backoff(1);
  Breaker breaker;
  Nanos expected = Breaker::kFirstPause;
  for (int failures = 0; failures < 12; ++failures) {
    breaker.unreached("why", backoff, kStart);
    CHECK(breaker.until() - kStart >= least(expected));
    CHECK(breaker.until() - kStart <= most(expected));
    expected = std::min(2 * expected, Breaker::kLongestPause);
  }
}

}  // namespace
}  // namespace tw::route
