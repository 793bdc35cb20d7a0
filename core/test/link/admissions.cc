#include "link/admissions.h"

#include <atomic>
#include <thread>

#include "test/wire/support.h"

namespace tw::link {
namespace {

using test::check_says;

constexpr Nanos kStart = 1000 * kSecond;
constexpr Nanos kTtl = 30 * kSecond;

bool same(const Secret& a, const Secret& b) {
  return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}

TEST_CASE("a session admits as many connections as it was minted for") {
  Admissions table;
  const auto ticket = table.mint(2, kTtl, kStart);
  REQUIRE(ticket.ok());
  for (int connection = 0; connection < 2; ++connection) {
    const auto secret = table.find(ticket->session, kStart);
    REQUIRE(secret.ok());
    CHECK(same(*secret, ticket->secret));
    CHECK(table.find(ticket->session, kStart).ok());  // looking uses nothing up
    CHECK(table.admit(ticket->session, kStart).ok());
  }
  check_says(table.find(ticket->session, kStart).status(), Code::kUnauthenticated,
             {"used up", "all of its 2 connections"});
  check_says(table.admit(ticket->session, kStart), Code::kUnauthenticated, {"used up"});
}

TEST_CASE("a session ends when its time is over") {
  Admissions table;
  const auto ticket = table.mint(5, kTtl, kStart);
  REQUIRE(ticket.ok());
  CHECK(table.find(ticket->session, kStart + kTtl - 1).ok());
  CHECK(table.admit(ticket->session, kStart + kTtl - 1).ok());
  const auto second = table.mint(5, kTtl, kStart);
  REQUIRE(second.ok());
  check_says(table.admit(second->session, kStart + kTtl), Code::kUnauthenticated,
             {"expired 0 ms ago"});
  check_says(table.find(ticket->session, kStart + kTtl + 7 * kMillisecond).status(),
             Code::kUnauthenticated, {"expired 7 ms ago"});
  CHECK(table.size() == 0);
  check_says(table.admit(ticket->session, kStart), Code::kUnauthenticated, {"never minted"});
}

TEST_CASE("an unknown session is refused") {
  Admissions table;
  check_says(table.find({}, kStart).status(), Code::kUnauthenticated, {"never minted"});
  check_says(table.admit({}, kStart), Code::kUnauthenticated, {"never minted"});
}

TEST_CASE("mint refuses what makes no sense") {
  Admissions table;
  for (const int connections : {-1, 0, Admissions::kMaxConnections + 1}) {
    check_says(table.mint(connections, kTtl, kStart).status(), Code::kInvalidArgument,
               {"1 to 64 connections", std::to_string(connections)});
  }
  for (const Nanos ttl : {Nanos{-1}, Nanos{0}, Admissions::kMaxTtl + 1, kForever}) {
    check_says(table.mint(1, ttl, kStart).status(), Code::kInvalidArgument,
               {"up to 3600 s", std::to_string(ttl)});
  }
  CHECK(table.size() == 0);
  CHECK(table.mint(Admissions::kMaxConnections, Admissions::kMaxTtl, kStart).ok());
}

TEST_CASE("a full table refuses new sessions until old ones expire, and keeps the old ones") {
  Admissions table(3);
  const auto first = table.mint(1, kTtl, kStart);
  REQUIRE(first.ok());
  REQUIRE(table.mint(1, 2 * kTtl, kStart).ok());
  REQUIRE(table.mint(1, 2 * kTtl, kStart).ok());
  check_says(table.mint(1, kTtl, kStart + kTtl - 1).status(), Code::kResourceExhausted,
             {"all 3 sessions"});
  CHECK(table.find(first->session, kStart + kTtl - 1).ok());
  CHECK(table.mint(1, kTtl, kStart + kTtl).ok());
  CHECK(table.size() == 3);
  table.expire(kStart + 2 * kTtl);
  CHECK(table.size() == 0);
}

TEST_CASE("threads cannot admit more connections than the session has") {
  Admissions table;
  constexpr int kConnections = 20;
  const auto ticket = table.mint(kConnections, kTtl);
  REQUIRE(ticket.ok());
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kConnections; ++i) {
        if (table.find(ticket->session).ok() && table.admit(ticket->session).ok()) ++admitted;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(admitted == kConnections);
}

}  // namespace
}  // namespace tw::link
