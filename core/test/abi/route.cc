// SPDX-License-Identifier: Apache-2.0
// Routes through the C ABI. What a route decides has tests of its own: test/route.
#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

using Way = std::unique_ptr<tw_route, Release<tw_route_release>>;

Way route_with(const tw_policy& policy, const tw_pauses* pauses = nullptr) {
  tw_route* route = nullptr;
  REQUIRE(tw_route_create(&policy, pauses, &route, nullptr) == TW_OK);
  return Way(route);
}

// An attempt to reach a peer on this host that offers shm and tcp.
struct Attempt {
  struct Reason {
    std::string transport, why;
    bool tried;
  };

  Attempt(tw_route* route, std::map<std::string, int> codes) : answers(std::move(codes)) {
    static constexpr const char* kAddresses[] = {"shm:/run/there", "tcp:127.0.0.1:7"};
    const tw_offer offer{1, 1, kAddresses, 2};
    code = tw_route_attempt(
        route, &offer,
        [](void*, const char* transport, tw_status* why) -> int {
          if (std::string_view(transport) != "verbs") return TW_OK;
          std::strcpy(why->details, "no device");
          return TW_CODE_UNAVAILABLE;
        },
        [](void* self, const char* transport, const char* address, tw_status* why) {
          auto& attempt = *static_cast<Attempt*>(self);
          attempt.dialled.emplace_back(address);
          std::strcpy(why->details, "nobody listens");
          return attempt.answers.at(transport);
        },
        [](void* self, const char* transport, const char* why, int32_t tried) {
          static_cast<Attempt*>(self)->reasons.push_back({transport, why, tried != 0});
        },
        this, &status);
  }

  std::map<std::string, int> answers;  // what connecting comes to
  std::vector<std::string> dialled;    // addresses
  std::vector<Reason> reasons;
  tw_status status{};
  int code;
};

TEST_CASE("abi route: an attempt takes the best transport that connects, and tells why no better") {
  const Way route = route_with({});
  const tw_advice first = tw_route_consult(route.get());
  CHECK(first.use == TW_USE_ATTEMPT);
  CHECK(first.begin);
  CHECK_FALSE(tw_route_consult(route.get()).begin);

  const Attempt attempt(route.get(), {{"shm", TW_CODE_UNAVAILABLE}, {"tcp", TW_OK}});
  CHECK(attempt.code == TW_OK);
  CHECK(attempt.dialled == std::vector<std::string>{"shm:/run/there", "tcp:127.0.0.1:7"});
  REQUIRE_FALSE(attempt.reasons.empty());
  for (const auto& reason : attempt.reasons) {
    CAPTURE(reason.transport);
    CHECK(reason.tried == (reason.transport == "shm"));
    if (reason.tried) CHECK(reason.why.find("nobody listens") != std::string::npos);
  }

  tw_route_linked(route.get(), "tcp");
  const tw_advice linked = tw_route_consult(route.get());
  CHECK(linked.use == TW_USE_LINK);
  CHECK_FALSE(linked.begin);
  CHECK(tw_route_failures(route.get()) == 0);
  CHECK(tw_route_better_in(route.get()) > 0);

  tw_route_lost(route.get(), "the peer has died");
  CHECK(tw_route_better_in(route.get()) == INT64_MAX);
}

TEST_CASE("abi route: an attempt that fails is followed by a pause, and none where it is final") {
  const Way route = route_with({});
  REQUIRE(tw_route_consult(route.get()).begin);
  const Attempt failed(route.get(), {{"shm", TW_CODE_UNAVAILABLE}, {"tcp", TW_CODE_UNAVAILABLE}});
  CHECK(failed.code == TW_CODE_UNAVAILABLE);
  CHECK(std::string_view(failed.status.details) ==
        "no transport that is permitted reaches the peer");
  tw_route_failed(route.get(), TW_ATTEMPT_UNREACHED);
  CHECK(tw_route_failures(route.get()) == 1);
  const tw_advice fallback = tw_route_consult(route.get());
  CHECK(fallback.use == TW_USE_FALLBACK);
  CHECK(fallback.retry_ns < INT64_MAX);
  CHECK(tw_route_pause(route.get(), 9) > 0);

  const Way hopeless = route_with({});
  REQUIRE(tw_route_consult(hopeless.get()).begin);
  constexpr int kFinal = TW_CODE_FAILED_PRECONDITION;
  const Attempt last(hopeless.get(), {{"shm", kFinal}, {"tcp", kFinal}});
  CHECK(last.code == kFinal);
  tw_route_failed(hopeless.get(), TW_ATTEMPT_FINAL);
  const tw_advice never = tw_route_consult(hopeless.get());
  CHECK(never.use == TW_USE_FALLBACK);
  CHECK(never.retry_ns == INT64_MAX);
}

TEST_CASE("abi route: what is no end of an attempt is refused, and the attempt goes on") {
  const Way route = route_with({});
  REQUIRE(tw_route_consult(route.get()).begin);
  for (const int32_t wrong : {-1, TW_ATTEMPT_UNREACHED + 1, INT32_MIN, INT32_MAX}) {
    CAPTURE(wrong);
    CHECK(tw_route_failed(route.get(), wrong) == 0);
  }
  CHECK(tw_route_failures(route.get()) == 0);
  CHECK(tw_route_consult(route.get()).use == TW_USE_ATTEMPT);
  CHECK(tw_route_failed(route.get(), TW_ATTEMPT_UNREACHED) == 1);
  CHECK(tw_route_failures(route.get()) == 1);
}

TEST_CASE("abi route: what is not permitted is not tried") {
  SUBCASE("another transport than the required one") {
    const Way route = route_with({"tcp", nullptr, 0, "transport='tcp'"});
    const Attempt attempt(route.get(), {{"tcp", TW_OK}});
    CHECK(attempt.code == TW_OK);
    CHECK(attempt.dialled == std::vector<std::string>{"tcp:127.0.0.1:7"});
  }
  SUBCASE("a forbidden one, and gRPC, with pauses of the caller's") {
    static constexpr const char* kForbidden[] = {"shm", "grpc"};
    constexpr int64_t kHour = 3'600'000'000'000;
    const tw_pauses pauses{kHour, kHour, kHour, kHour, kHour};
    const Way route = route_with({nullptr, kForbidden, 2, nullptr}, &pauses);
    REQUIRE(tw_route_consult(route.get()).begin);
    const Attempt attempt(route.get(), {{"tcp", TW_CODE_UNAVAILABLE}});
    CHECK(attempt.dialled == std::vector<std::string>{"tcp:127.0.0.1:7"});
    CHECK(tw_route_failed(route.get(), TW_ATTEMPT_UNREACHED) == 1);
    const tw_advice advice = tw_route_consult(route.get());
    CHECK(advice.use == TW_USE_NOTHING);
    CHECK(advice.retry_ns > kHour / 2);
    CHECK(advice.retry_ns < INT64_MAX);
  }
}

TEST_CASE("abi route: a transport whose links fail is passed over, which is told once") {
  const Way route = route_with({});
  tw_passed_over news{};
  for (int links = 0; links < 20 && !tw_route_news(route.get(), &news); ++links) {
    tw_route_linked(route.get(), "verbs");
    tw_route_lost(route.get(), "the device has failed");
  }
  CHECK(std::string_view(news.transport) == "verbs");
  CHECK(std::string_view(news.why).find("the device has failed") != std::string_view::npos);
  CHECK(news.left_ns > 0);
  CHECK(news.left_ns < INT64_MAX);
  CHECK_FALSE(tw_route_news(route.get(), &news));
}

}  // namespace
}  // namespace tw::test::abi
