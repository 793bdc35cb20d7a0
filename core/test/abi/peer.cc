// SPDX-License-Identifier: Apache-2.0
// Peers through the C ABI: calls that either end of a link begins, and who comes and goes.
#include <poll.h>

#include "test/abi/world.h"

namespace tw::test::abi {
namespace {

// The token that comes next; 0: none within a time that a test may wait.
uint64_t next_token(tw_events* events) {
  uint64_t token = 0;
  int closed = 0;
  return tw_events_wait(events, &kPatience, &token, 1, &closed) == 1 ? token : 0;
}

std::vector<Peer> peers_of(tw_server* server) {
  std::vector<Peer> peers;
  tw_server_peers(
      server,
      [](void* list, tw_peer* peer) {
        static_cast<std::vector<Peer>*>(list)->emplace_back(tw_peer_share(peer));
      },
      &peers);
  return peers;
}

TEST_CASE_TEMPLATE("abi peer: the end that was connected to calls the other one", Way,
                   TENSORWIRE_ABI_WAYS) {
  House home;  // serves the peer that this end connects to
  House away([](Served call) {
    const Peer caller(tw_call_process(call.get()));
    // Calls cross on one link.
    const Reply reply = unary(caller.get(), "/t/Echo", Payload({"there and back"}));
    const Message request = receive(call.get());
    const std::string text(reply.message ? segment(reply.message) : "nothing");
    (void)finish(call.get(), reply.code, reply.details, Payload({text, segment(request)}));
  });
  const Link link = away.dial(Way::kName, home.server().get());
  const std::string large = text_of(5 << 20);
  for (int i = 0; i < 20; ++i) {
    const Reply reply = unary(link.get(), "/t/Call", Payload({large}));
    CAPTURE(reply.details);
    REQUIRE(reply.code == TW_CODE_OK);
    CHECK(segment(reply.message, 0) == "there and back");
    CHECK(segment(reply.message, 1) == large);
  }
}

TEST_CASE("abi peer: who serves nothing says so, and the link goes on") {
  House away([](Served call) {
    const Peer caller(tw_call_process(call.get()));
    const Reply reply = unary(caller.get(), "/t/Echo", Payload({"x"}));
    (void)finish(call.get(), reply.code, reply.details);
  });
  const Link link = away.dial("shm");
  for (int i = 0; i < 2; ++i) {
    const Reply reply = unary(link.get(), "/t/Call", Payload({"x"}));
    CHECK(reply.code == TW_CODE_UNIMPLEMENTED);
    CHECK(reply.details == "this process serves no calls on this link");
  }
}

TEST_CASE("abi peer: a call that the accepting end has begun ends with the link") {
  Ends ends("tcp");
  Server home;
  const Link link = ends.house.dial("tcp", home.get());
  std::vector<Peer> peers;
  REQUIRE(eventually([&] {
    peers = peers_of(ends.house.server().get());
    return peers.size() == 2;
  }));
  tw_peer* const caller = peers[0].get() == ends.there.get() ? peers[1].get() : peers[0].get();
  const Call call = start(caller, "/t/Hold");
  const Served held = home.next();
  REQUIRE(held);
  CHECK(method_of(held.get()) == "/t/Hold");
  tw_peer_close(link.get());
  int32_t code = TW_CODE_OK;
  tw_metadata* trailing = nullptr;
  REQUIRE(tw_call_outcome(call.get(), &kPatience, &code, &trailing, nullptr) == TW_OK);
  CHECK(!trailing);
  CHECK(code == TW_CODE_UNAVAILABLE);
  CHECK(tw_call_active(held.get()) == 0);
}

TEST_CASE("abi peer: a link does not go to a server that is closed") {
  House away;
  Server home;
  tw_server_close(home.get());
  tw_link* link = nullptr;
  tw_status status{};
  CHECK(away.server().try_dial("shm", home.get(), &link, &status) == TW_CODE_UNAVAILABLE);
  CHECK(std::string_view(status.details).find("is closed") != std::string_view::npos);
  CHECK(link == nullptr);
}

TEST_CASE("abi peer: a server hears who comes and goes, and either end that the other is gone") {
  House away;
  tw_server* const server = away.server().get();
  const Events events(tw_events_create());
  REQUIRE(tw_server_notify_peers(server, events.get(), 1, nullptr) == TW_OK);
  CHECK(peers_of(server).empty());

  Link link = away.dial("shm");
  CHECK(next_token(events.get()) == 1);
  const auto peers = peers_of(server);
  REQUIRE(peers.size() == 1);
  tw_peer* const there = peers[0].get();
  CHECK(tw_peer_alive(there) == 1);
  CHECK(std::string_view(tw_peer_transport(there)) == "shm");
  CHECK(tw_peer_pid(there) == getpid());
  CHECK(std::string_view(tw_peer_address(there)) == "unix:");

  const Peer here(tw_peer_share(link.get()));
  REQUIRE(tw_peer_notify_gone(here.get(), events.get(), 2) == 1);
  REQUIRE(tw_peer_notify_gone(there, events.get(), 3) == 1);
  REQUIRE(tw_peer_notify_gone(there, events.get(), 3) == 1);
  REQUIRE(tw_server_notify_peers(server, events.get(), 4, nullptr) == TW_OK);
  link.reset();  // whoever has a peer does not keep the link open
  std::multiset<uint64_t> told;
  for (int i = 0; i < 4; ++i) told.insert(next_token(events.get()));
  CHECK(told == std::multiset<uint64_t>{2, 3, 3, 4});
  CHECK(tw_peer_alive(there) == 0);
  CHECK(tw_peer_alive(here.get()) == 0);
  CHECK(peers_of(server).empty());
  tw_status why{};
  tw_peer_death(there, &why);
  CHECK(why.code != TW_CODE_OK);

  REQUIRE(tw_peer_notify_gone(there, events.get(), 5) == 1);
  CHECK(next_token(events.get()) == 5);

  REQUIRE(tw_server_notify_peers(server, events.get(), 6, nullptr) == TW_OK);
  away.close();
  CHECK(next_token(events.get()) == 6);
  tw_status status{};
  CHECK(tw_server_notify_peers(server, events.get(), 7, &status) == TW_CODE_UNAVAILABLE);
  CHECK(std::string_view(status.details) == "the server is closed");
}

TEST_CASE("abi peer: an event loop can watch the queue's descriptor") {
  House away;
  const Events events(tw_events_create());
  pollfd waiting{-1, POLLIN, 0};
  REQUIRE(tw_events_descriptor(events.get(), &waiting.fd, nullptr) == TW_OK);
  REQUIRE(tw_server_notify_peers(away.server().get(), events.get(), 1, nullptr) == TW_OK);
  CHECK(::poll(&waiting, 1, 0) == 0);
  const Link link = away.dial("shm");
  REQUIRE(::poll(&waiting, 1, 60'000) == 1);
  CHECK(next_token(events.get()) == 1);
  CHECK(::poll(&waiting, 1, 0) == 0);
}

}  // namespace
}  // namespace tw::test::abi
