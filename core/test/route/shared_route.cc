// SPDX-License-Identifier: Apache-2.0
#include "route/shared_route.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "test/not_tried.h"
#include "test/route/candidates.h"
#include "test/shortage.h"

namespace tw::route {
namespace {

using Use = Route::Use;

const Offer kReached = {true, true, {"near:/s", "fast:h:1", "plain:h:1"}};

// A route on a clock of its own.
struct World {
  Nanos time = 1000 * kSecond;
  SharedRoute route{kCandidates, {}, "other", 1, {}, [this] { return time; }};

  // With all that is on this host; connecting takes a second, and fails but for one transport.
  AttemptResult attempt(std::string_view reached = {}) {
    return route.attempt(
        kReached, [](std::string_view) { return Status(); },
        [&](std::string_view transport, const std::string&) -> Status {
          time += kSecond;
          if (transport == reached) return {};
          return {Code::kUnavailable, "refused"};
        });
  }
};

TEST_CASE("shared route: a link, its end, and a pause, by its clock") {
  World world;
  REQUIRE(world.route.consult().begin);
  CHECK(world.attempt("plain").transport == "plain");
  world.route.linked("plain");
  CHECK(world.route.consult().use == Use::kLink);
  world.time += Route::kSteady;
  world.route.lost("it has died");
  REQUIRE(world.route.consult().begin);
  CHECK(world.attempt().code() == Code::kUnavailable);
  world.route.failed(Route::Failure::kUnreached);
  CHECK(world.route.failures() == 1);

  const Route::Advice waiting = world.route.consult();
  CHECK(waiting.use == Use::kFallback);
  CHECK_FALSE(waiting.begin);
  const Nanos left = world.route.left(waiting.retry);
  CHECK(left > 0);
  world.time += left - 1;
  CHECK_FALSE(world.route.consult().begin);
  CHECK(world.route.left(waiting.retry) == 1);
  world.time += 1;
  CHECK(world.route.left(waiting.retry) == 0);
  CHECK(world.route.consult().begin);
}

TEST_CASE("shared route: what is past has no time left, and what never comes has all of it") {
  World world;
  CHECK(world.route.left(0) == 0);
  CHECK(world.route.left(world.time - 1) == 0);
  CHECK(world.route.left(world.time + 7) == 7);
  CHECK(world.route.left(kForever) == kForever);
  CHECK(world.route.better_from() == kForever);
}

TEST_CASE("shared route: others consult it while an attempt goes on") {
  World world;
  REQUIRE(world.route.consult().begin);
  int asked = 0;
  const AttemptResult found = world.route.attempt(
      kReached, [](std::string_view) { return Status(); },
      [&](std::string_view, const std::string&) -> Status {
        std::thread([&] {
          const Route::Advice advice = world.route.consult();
          CHECK(advice.use == Use::kAttempt);
          CHECK_FALSE(advice.begin);
          ++asked;
        }).join();
        return {};
      });
  CHECK(found.code() == Code::kOk);
  CHECK(asked == 1);
}

TEST_CASE("shared route: what an attempt could not reach is passed over from its end on") {
  World world;
  std::optional<Route::News> news;
  Nanos began = 0;
  for (int attempts = 0; attempts < 20 && !news; ++attempts) {
    began = world.time;
    world.attempt("plain");
    news = world.route.news();
  }
  REQUIRE(news);
  CHECK(news->transport == "fast");
  CHECK(news->why.find("refused") != std::string::npos);
  CHECK(world.time == began + 3 * kSecond);
  CHECK(world.route.left(news->until) ==
        Backoff(1).pause(1, Breaker::kFirstPause, Breaker::kLongestPause));
  CHECK_FALSE(world.route.news());

  const AttemptResult next = world.attempt("plain");
  CHECK(next.tried("near"));
  CHECK_FALSE(next.tried("fast"));
  CHECK_FALSE(next.tried("plain"));
  world.route.linked("plain");
  CHECK(world.route.better_from() == news->until);
}

TEST_CASE("shared route: while there is a link only what is better is attempted") {
  World world;
  world.route.linked("fast");
  const Nanos began = world.time;
  const AttemptResult found = world.attempt();
  CHECK(world.time == began + kSecond);
  REQUIRE(found.reasons.size() == 1);
  CHECK(found.reasons[0].transport == "near");
}

TEST_CASE("shared route: of many threads one is told to make the attempt") {
  SharedRoute route(kCandidates, {}, "other", 1, {}, now);
  std::atomic<int> begun{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int asked = 0; asked < 1000; ++asked) begun += route.consult().begin;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(begun == 1);
}

TEST_CASE("shared route: routes that are made do not pause in step") {
  std::vector<Nanos> pauses;
  for (int i = 0; i < 2; ++i) {
    const auto route = SharedRoute::make(kCandidates, {}, "other", {}, now);
    REQUIRE(route.ok());
    for (int failures = 1; failures < 5; ++failures) pauses.push_back((*route)->pause(failures));
  }
  CHECK(std::vector(pauses.begin(), pauses.begin() + 4) !=
        std::vector(pauses.begin() + 4, pauses.end()));
}

TEST_CASE("shared route: a link is lost without its reason where memory is short") {
  if (!test::kFailsOnDemand)
    return test::not_tried("ThreadSanitizer's allocator does not fail on demand");
  World world;
  world.route.linked("plain");
  const std::string why(100, 'x');
  test::Failing failing(1);
  world.route.lost(why);
  CHECK(failing.end());
  CHECK(world.route.consult().begin);
}

}  // namespace
}  // namespace tw::route
