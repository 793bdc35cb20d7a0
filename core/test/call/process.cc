// SPDX-License-Identifier: Apache-2.0
// Calls between processes, one of which is killed.
#include <atomic>

#include "test/call/abroad.h"

namespace tw::test {
namespace {

TEST_CASE("helper: server" * doctest::skip()) {
  const auto hello = read_thing<std::array<std::byte, wire::kHelloSize>>(kFromTest);
  const auto lent = block_of(bytes_of(kLent));
  lent->publish();
  Slot<InMessage> kept;
  House house(
      [&](Ref<ServerCall> call) {
        InMessage request;
        if (call->method() == "/t/Hang") {
          receive(*call, request);
          (void)call->wait_ended(kForever);
        } else if (call->method() == "/t/Keep") {
          receive(*call, request);
          kept.put(std::move(request));
          finish(*call);
        } else if (call->method() == "/t/Lend") {
          answer(*call, {out({lent->data(), lent->size()})});
        } else if (call->method() == "/t/Fork") {
          fork_a_holder();
          finish(*call);
        } else {
          echo(*call);
        }
        return Ref<ServerCall>{};
      },
      8);
  auto ticket = house.server().listener().admit(wire::decode_hello(hello).value(), 2, 60 * kSecond);
  REQUIRE(ticket.ok());
  for (const std::string& address : {house.shm(), house.tcp()}) {
    meet::Invitation in{address, ticket->session, ticket->secret, house.server().instance(),
                        runtime().hello()};
    write_thing(kToTest, invite(in));
  }
  char byte;
  (void)read(kFromTest, &byte, 1);  // until the test ends, or this process is killed
}

TEST_CASE_TEMPLATE("process: a killed server ends all calls as unavailable", Way, TENSORWIRE_WAYS) {
  ArenaWatch arena;
  {
    Abroad<Way> abroad;
    SUBCASE("alone") {}
    SUBCASE("with children that hold its sockets") {
      CHECK(unary(*abroad.link, "/t/Fork", {}).code == Code::kOk);
    }
    const auto bytes = bytes_of(300'000);
    const Reply before = unary(*abroad.link, "/t/Echo", {out(bytes)});
    REQUIRE(before.code == Code::kOk);
    CHECK(same(before.segments.at(0), bytes));

    std::atomic<int> unavailable{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const Reply reply =
            unary(*abroad.link, "/t/Hang", {out(std::span(bytes).first(t % 2 ? 10 : 300'000))});
        unavailable += reply.code == Code::kUnavailable;
      });
    const auto idle = start(*abroad.link, "/t/Hang");
    auto queue = make_ref<EventQueue>();
    idle->notify(Call::Happening::kEnded, queue, 1);
    REQUIRE(eventually([&] { return abroad.link->calls() == 5; }));
    abroad.helper.kill();
    for (auto& thread : threads) thread.join();
    CHECK(unavailable == 4);
    std::vector<uint64_t> tokens;
    CHECK(take_tokens(*queue, tokens, 1, patience()) == Waited::kDone);
    CHECK(idle->outcome().code == Code::kUnavailable);
    CHECK_FALSE(idle->outcome().details.empty());
    CHECK(unary(*abroad.link, "/t/Echo", {}).code == Code::kUnavailable);
  }
  CHECK(arena.restored());
}

TEST_CASE("process: what a killed server has lent stays readable") {
  ArenaWatch arena;
  Abroad<ShmWay> abroad;
  const auto bytes = bytes_of(kLent);
  Reply first = unary(*abroad.link, "/t/Lend", {}), second = unary(*abroad.link, "/t/Lend", {});
  REQUIRE(first.code == Code::kOk);
  REQUIRE(first.segments.at(0).view() != nullptr);
  abroad.helper.kill();
  REQUIRE(eventually([&] { return !abroad.link->link().alive(); }));
  CHECK(same(second.segments.at(0), bytes));
  second.segments.clear();
  CHECK(same(first.segments[0], bytes));
  CHECK(abroad.link->stats().views == 1);
  first.segments.clear();
  CHECK(abroad.link->stats().views == 0);
}

TEST_CASE_TEMPLATE("process: what a killed server was lent comes home", Way, TENSORWIRE_WAYS) {
  ArenaWatch arena;
  Abroad<Way> abroad;
  {
    const auto block = block_of(bytes_of(kLent));
    block->publish();
    for (int i = 0; i < 3; ++i)
      CHECK(unary(*abroad.link, "/t/Keep", {out({block->data(), block->size()})}).code ==
            Code::kOk);
  }
  CHECK(abroad.link->stats().leases == (abroad.link->link().profile().bulk == Bulk::kMap ? 3 : 0));
  abroad.helper.kill();
  CHECK(arena.restored());
  CHECK(abroad.link->stats().leases == 0);
}

TEST_CASE("helper: client" * doctest::skip()) {
  std::array<std::byte, wire::kHelloSize> hello;
  wire::encode_hello(hello, runtime().hello());
  write_thing(kToTest, hello);
  const auto link = follow(read_thing<Invite>(kFromTest));
  const Reply lent = unary(*link, "/t/Lend", {});
  CHECK(lent.code == Code::kOk);
  const auto hanging = start(*link, "/t/Hang");
  write_thing(kToTest, 'r');
  char byte;
  (void)read(kFromTest, &byte, 1);  // until the test ends, or this process is killed
}

TEST_CASE_TEMPLATE("process: a killed client leaves nothing behind at its server", Way,
                   TENSORWIRE_WAYS) {
  ArenaWatch arena;
  {
    Slot<Ref<ServerCall>> hanging;
    House house(
        [&](Ref<ServerCall> call) {
          if (call->method() == "/t/Hang") {
            hanging.put(call);
          } else if (call->method() == "/t/Lend") {
            answer(*call, {out(bytes_of(kLent))});
          } else {
            echo(*call);
          }
          return Ref<ServerCall>{};
        },
        2);
    Closing other(house.connect<Way>());
    Helper helper("client");
    const auto hello = wire::decode_hello(helper.hear<std::array<std::byte, wire::kHelloSize>>());
    REQUIRE(hello.ok());
    auto in = house.invitation(Way::kName);
    const auto ticket = house.server().listener().admit(*hello, 1, 60 * kSecond);
    REQUIRE(ticket.ok());
    in.session = ticket->session;
    in.secret = ticket->secret;
    helper.tell(invite(in));
    CHECK(helper.hear<char>() == 'r');
    const auto served = hanging.take();
    CHECK(ports_of(house.server()).size() == 2);
    CHECK(served->active());
    helper.kill();
    CHECK(served->wait_ended(patience()) == Waited::kDone);
    CHECK_FALSE(served->active());
    CHECK(eventually([&] { return ports_of(house.server()).size() == 1; }));
    CHECK(house.server().active() == 0);
    CHECK(unary(*other, "/t/Echo", {}).code == Code::kOk);
  }
  CHECK(arena.restored());
}

}  // namespace
}  // namespace tw::test
