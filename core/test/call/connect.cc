// SPDX-License-Identifier: Apache-2.0
// Links as this process makes them for who calls on them.
#include "call/connect.h"

#include "test/call/world.h"

namespace tw::test {
namespace {

constexpr size_t kLimit = 100'000;

TEST_CASE_TEMPLATE("connect: on terms, as far as there are any", Way, TENSORWIRE_WAYS) {
  House house(echo);
  const auto refused = [&](const Terms& terms) {
    const Closing link(
        connect(runtime(), house.invitation(Way::kName), nullptr, terms, {patience()}).value());
    const auto bytes = bytes_of(kLimit + 1);
    const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
    CHECK((reply.code == Code::kOk || reply.code == Code::kResourceExhausted));
    return reply.code != Code::kOk;
  };
  CHECK_FALSE(refused({}));
  CHECK(refused({kLimit, {}}));
  CHECK_FALSE(refused({kLimit + 1, {}}));
  Terms terms;
  terms.thresholds[static_cast<size_t>(Threshold::kEager)] = 12345;
  const Closing link(
      connect(runtime(), house.invitation(Way::kName), nullptr, terms, {patience()}).value());
  CHECK(link->link().thresholds().bytes[static_cast<size_t>(Threshold::kEager)] == 12345);
}

TEST_CASE_TEMPLATE("connect: the peer is served, if somebody does", Way, TENSORWIRE_WAYS) {
  Open server;  // the end that accepts
  House house(echo);
  const auto peers = [&] {
    size_t count = 0;
    house.server().each_peer([&](ServerPort&) { ++count; });
    return count;
  };
  for (const bool serves : {true, false}) {
    CAPTURE(serves);
    CHECK(peers() == 0);  // a link that is closed has no peer
    const Closing link(connect(runtime(), server.house.invitation(Way::kName),
                               serves ? &house.server() : nullptr, {}, {patience()})
                           .value());
    CHECK(peers() == (serves ? 1 : 0));
    const auto call = start(*link, "/t/Here");
    const auto served = server.calls.take();
    const auto bytes = bytes_of(100);
    const Reply reply = unary(served->port(), "/t/Back", {out(bytes)});
    CHECK(reply.code == (serves ? Code::kOk : Code::kUnimplemented));
    CHECK(finish(*served));
    REQUIRE(in_time(call->wait_ended(patience())));
  }
}

TEST_CASE("connect: errors are those of the way there, and of a server that is closed") {
  House house(echo);
  auto in = house.invitation("tcp");
  in.secret = house.invitation("tcp").secret;  // of another session
  CHECK(connect(runtime(), in, nullptr, {}, {patience()}).status().code() ==
        Code::kUnauthenticated);
  const auto closed = Server::create();
  REQUIRE(closed.ok());
  (*closed)->close();
  CHECK(connect(runtime(), house.invitation("tcp"), closed->get(), {}, {patience()})
            .status()
            .code() == Code::kUnavailable);
}

TEST_CASE("connect: a peer is where the bootstrap saw it, if that has said so") {
  Peer peer;
  peer.address = "ipv4:10.0.0.7:1";
  CHECK(peer.origin() == "ipv4:10.0.0.7:1");
  peer.caller = "ipv4:192.0.2.1:2";
  CHECK(peer.origin() == "ipv4:192.0.2.1:2");
}

}  // namespace
}  // namespace tw::test
