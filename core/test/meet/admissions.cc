// SPDX-License-Identifier: Apache-2.0
#include "meet/admissions.h"

#include <atomic>
#include <thread>

#include "test/wire/support.h"

namespace tw::meet {
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
  check_says(table.admit(ticket->session, kStart).status(), Code::kUnauthenticated, {"used up"});
  // Known until both have become links, in case one of them does not.
  table.settle(ticket->session);
  table.give_back(ticket->session);
  CHECK(table.admit(ticket->session, kStart).ok());
  table.settle(ticket->session);
  CHECK(table.size() == 0);
  check_says(table.find(ticket->session, kStart).status(), Code::kUnauthenticated, {"was used"});
  table.settle(ticket->session);
  table.give_back(ticket->session);
  CHECK(table.size() == 0);
}

TEST_CASE("whoever has proved itself is who asked for the session") {
  Admissions table;
  wire::Hello hello;
  hello.pid = 4711;
  const auto ticket = table.mint(1, kTtl, kStart, "ipv4:192.0.2.1", hello);
  REQUIRE(ticket.ok());
  const auto client = table.admit(ticket->session, kStart);
  REQUIRE(client.ok());
  CHECK(client->hello.pid == 4711);
}

TEST_CASE("a session that both ends have made up admits connections whenever they come") {
  Admissions table;
  wire::SessionId session{};
  session[0] = 7;
  auto secret = Secret::random();
  REQUIRE(secret.ok());
  table.expect(session, *secret, {{}, {}, "6"});
  for (const Nanos later : {kStart, kStart + 1000 * Admissions::kMaxTtl}) {
    const auto found = table.find(session, later);
    REQUIRE(found.ok());
    CHECK(same(*found, *secret));
    const auto client = table.admit(session, later);
    REQUIRE(client.ok());
    CHECK(client->agent == "6");
    table.settle(session);
  }
}

TEST_CASE("a session ends when its time is over") {
  Admissions table;
  const auto ticket = table.mint(5, kTtl, kStart);
  REQUIRE(ticket.ok());
  CHECK(table.find(ticket->session, kStart + kTtl - 1).ok());
  CHECK(table.admit(ticket->session, kStart + kTtl - 1).ok());
  const auto second = table.mint(5, kTtl, kStart);
  REQUIRE(second.ok());
  check_says(table.admit(second->session, kStart + kTtl).status(), Code::kUnauthenticated,
             {"expired 0 ms ago"});
  check_says(table.find(ticket->session, kStart + kTtl + 7 * kMillisecond).status(),
             Code::kUnauthenticated, {"expired 7 ms ago"});
  CHECK(table.size() == 0);
  check_says(table.admit(ticket->session, kStart).status(), Code::kUnauthenticated,
             {"never minted"});
}

TEST_CASE("an unknown session is refused") {
  Admissions table;
  check_says(table.find({}, kStart).status(), Code::kUnauthenticated, {"never minted"});
  check_says(table.admit({}, kStart).status(), Code::kUnauthenticated, {"never minted"});
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

TEST_CASE("a full table gives up the oldest session of the greediest source") {
  Admissions table(6);
  const auto mint = [&](const char* source, Nanos at = kStart) {
    auto ticket = table.mint(1, kTtl, at, source);
    REQUIRE(ticket.ok());
    return std::move(*ticket);
  };
  const auto lives = [&](const Admissions::Ticket& ticket, Nanos at = kStart) {
    return table.find(ticket.session, at).ok();
  };
  const auto modest = mint("modest");
  std::vector<Admissions::Ticket> greedy;
  for (int i = 0; i < 5; ++i) greedy.push_back(mint("greedy"));
  CHECK_FALSE(greedy.back().evicted);
  // A stranger that asks for thousands takes them from itself, and so does whoever comes late.
  for (int i = 0; i < 5000; ++i) greedy.push_back(mint("greedy"));
  CHECK(greedy.back().evicted);
  CHECK(table.size() == 6);
  CHECK(lives(modest));
  const auto late = mint("late");
  CHECK(late.evicted);
  CHECK(lives(late));
  CHECK(lives(modest));
  CHECK_FALSE(lives(greedy[greedy.size() - 5]));
  CHECK(lives(greedy[greedy.size() - 4]));
  // Equals: the oldest of one of them.
  Admissions small(2);
  const auto first = small.mint(1, kTtl, kStart, "a");
  const auto second = small.mint(1, kTtl, kStart, "b");
  CHECK(small.mint(1, kTtl, kStart, "c").ok());
  CHECK(small.find(first->session, kStart).ok() != small.find(second->session, kStart).ok());
  // What is over is given up first.
  CHECK_FALSE(mint("late", kStart + kTtl).evicted);
  CHECK(table.size() == 1);
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
}  // namespace tw::meet
