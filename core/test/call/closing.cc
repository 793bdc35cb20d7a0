// SPDX-License-Identifier: Apache-2.0
// What a server that closes, a link that closes and one that is lost do to calls.
#include <atomic>
#include <functional>
#include <memory>

#include "test/call/world.h"
#include "test/transport/pair.h"

namespace tw::test {
namespace {

TEST_CASE_TEMPLATE("closing: a server that refuses finishes what it has begun", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  server.house.server().refuse();
  REQUIRE(eventually([&] { return !link->link().alive(); }));
  CHECK(link->link().death().code() == Code::kUnavailable);
  CHECK(link->link().death().details().find("shutting down") != std::string::npos);
  CHECK(unary(*link, "/t/New", {}).code == Code::kUnavailable);
  // A client that has not heard of it yet is told so for each call.
  Closing unaware(server.house.connect<Way>());
  const Reply refused = unary(*unaware, "/t/New", {});
  CHECK(refused.code == Code::kUnavailable);
  CHECK(refused.details.find("going away") != std::string::npos);

  CHECK(server.house.server().active() == 1);
  const auto bytes = bytes_of(100'000);
  REQUIRE(send(*served, {out(bytes)}));
  InMessage message;
  REQUIRE(receive(*call, message));
  CHECK(same(message.segments[0], bytes));
  CHECK(finish(*served));
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
  CHECK(call->outcome().code == Code::kOk);
  CHECK(server.house.server().active() == 0);
}

TEST_CASE_TEMPLATE("closing: a closed server ends the calls under way at both ends", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  std::atomic<bool> waiting_ended{false};
  std::thread waiter([&] { waiting_ended = call->wait_ended(patience()) == Waited::kDone; });
  server.house.close();
  waiter.join();
  CHECK(waiting_ended);
  CHECK(call->outcome().code == Code::kUnavailable);
  CHECK(served->ended());
  CHECK_FALSE(finish(*served));
  CHECK(unary(*link, "/t/New", {}).code == Code::kUnavailable);
  CHECK(eventually([&] { return ports_of(server.house.server()).empty(); }));
}

// Its peer seems to have some of it yet to take, the first times that somebody looks.
class Behind final : public SealedTransport {
 public:
  explicit Behind(std::unique_ptr<Transport> inner)
      : SealedTransport(std::move(inner), SealKey{}, SealKey{}) {}
  bool undelivered() override { return looks_.fetch_add(1) < 3; }

 private:
  std::atomic<int> looks_{0};
};

TEST_CASE("closing: a call that crosses the other end's close is answered") {
  Open server;
  Closing link(server.house.connect<ShmWay>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  // The link stays for as long as its memory is out on lease.
  const auto block = block_of(bytes_of(kLent));
  OutSegment lent = out({block->data(), kLent});
  lent.block = block;
  REQUIRE(send(*served, {lent}));
  InMessage held;
  REQUIRE(receive(*call, held));
  REQUIRE(held.leased());
  const auto late = link->new_call(kForever);
  REQUIRE(late.ok());
  served->link().close({Code::kUnavailable, "going"});
  REQUIRE((*late)->begin("/t/Late", {}, {}, false, true, false).ok());
  REQUIRE(in_time((*late)->wait_ended(patience())));
  CHECK((*late)->outcome().code == Code::kUnavailable);
  CHECK((*late)->outcome().details == "the link is closed");
  CHECK_FALSE(link->link().lost());
}

// A link whose server's end moves its bytes by a T.
template <class T>
struct Joined {
  explicit Joined(Server& server) : Joined(server, Tcp::make()) {}
  Joined(Server& server, TransportPair pair) : theirs(*new T(std::move(pair.b))) {
    server.arrived({std::unique_ptr<Transport>(&theirs), peer()});
    auto made = CallPort::create(
        runtime(), std::make_unique<SealedTransport>(std::move(pair.a), SealKey{}, SealKey{}),
        peer(), 1 << 20);
    REQUIRE(made.ok());
    here = std::move(*made);
    there = ports_of(server).at(0);
  }
  ~Joined() { here->link().close({Code::kCancelled, "the test is over"}); }
  static Peer peer() {
    Peer other;
    other.address = "unix:";
    other.pid = getpid();
    return other;
  }
  T& theirs;
  Ref<CallPort> here;
  Ref<ServerPort> there;
};

// Does something at its next send.
class Interrupted final : public SealedTransport {
 public:
  explicit Interrupted(std::unique_ptr<Transport> inner)
      : SealedTransport(std::move(inner), SealKey{}, SealKey{}) {}
  Result<size_t> send(std::span<const iovec> data) override {
    if (const auto what = std::exchange(next, nullptr)) what();
    if (full) return 0;
    return SealedTransport::send(data);
  }
  std::function<void()> next;
  std::atomic<bool> full{false};
};

TEST_CASE("closing: a call that comes while the other end closes is answered") {
  Open server;
  const Joined<Interrupted> link(server.house.server());
  Ref<ClientCall> late;
  // All calls have been told when this end says that it goes.
  link.theirs.next = [&] {
    late = start(*link.here, "/t/Late");
    CHECK(eventually([&] { return link.there->calls() == 1; }));
  };
  link.there->link().close({Code::kUnavailable, "going"});
  REQUIRE(late);
  REQUIRE(in_time(late->wait_ended(patience())));
  CHECK(late->outcome().code == Code::kUnavailable);
  CHECK(late->outcome().details == "going");
}

TEST_CASE("closing: a reply whose call is cancelled while it begins is given up") {
  Open server;
  const Joined<Interrupted> link(server.house.server());
  const auto call = start(*link.here, "/t/Long");
  const auto served = server.calls.take();
  const auto bytes = bytes_of(1 << 20);
  std::vector<OutSegment> segments{out(bytes)};
  int kept = 0;
  const Keeper keeper{Keeper::How::kHold,
                      [](void* context) -> Hold {
                        ++*static_cast<int*>(context);
                        return {};
                      },
                      &kept};
  Ref<ClientCall> other;
  link.theirs.next = [&] {
    CHECK(call->cancel(Code::kCancelled, ""));
    other = start(*link.here, "/t/Other");
    // It comes after the cancellation.
    CHECK(eventually([&] { return link.there->calls() == 2; }));
    link.theirs.full = true;
  };
  CHECK(served->finish(Code::kOk, {}, {}, true, segments, keeper));
  CHECK(kept == 0);
  link.theirs.full = false;
  CHECK(finish(*server.calls.take()));
  CHECK(in_time(other->wait_ended(patience())));
}

TEST_CASE("closing: a link that nobody looks after yet tells its peer that its server goes") {
  TransportPair pair = Shm::make();
  auto poller = runtime().background();
  REQUIRE(poller.ok());
  const auto link =
      make_ref<Link>(runtime(), **poller, std::move(pair.a), Peer{}, 1 << 20, Link::Role::kServer);
  link->attach<CallPort>();
  // More than the peer takes, so that somebody is to look whether it does.
  for (int i = 0; i < 1000; ++i) link->go_away(Code::kUnavailable, "the server is shutting down");
  CHECK(link->queued() != 0);
  CHECK(link->start().ok());
  link->close({Code::kCancelled, "the test is over"});
}

// Tells who polls for it.
class Watched final : public SealedTransport {
 public:
  explicit Watched(std::unique_ptr<Transport> inner)
      : SealedTransport(std::move(inner), SealKey{}, SealKey{}) {}
  Status watch(Poller& poller, Ref<Watcher> watcher) override {
    poller_ = &poller;
    return SealedTransport::watch(poller, std::move(watcher));
  }
  bool undelivered() override { return true; }  // it lingers, and keeps the poller busy
  Poller& poller() const { return *poller_; }

 private:
  Poller* poller_ = nullptr;
};

TEST_CASE("closing: nobody polls for a closed server beside the background") {
  const auto server = Server::create(1 << 20).value();
  const Joined<Watched> link(*server);
  // Two calls, of which one is left: the next look is at the links.
  const auto one = start(*link.here, "/t/One"), two = start(*link.here, "/t/Two");
  std::vector<Ref<ServerCall>> calls;
  REQUIRE(server->next(calls, 1, patience()) == Waited::kDone);
  REQUIRE(link.there->serving() == 2);
  calls.clear();

  // The background is held up meanwhile, and may be the last to let go of what holds it.
  struct Gate {
    Slot<bool> goes_on, held_up;
  };
  const auto gate = std::make_shared<Gate>();
  (*runtime().background())->add_timer(0, [gate] {
    gate->held_up.put(true);
    (void)gate->goes_on.take();
  });
  (void)gate->held_up.take();
  auto& polled_here = tally();
  link.theirs.poller().add_timer(0, [&polled_here, self = std::this_thread::get_id()] {
    polled_here += std::this_thread::get_id() == self;
  });
  server->close();
  const Waited next = server->next(calls, 1, patience());
  gate->goes_on.put(true);
  CHECK(next == Waited::kClosed);
  CHECK(polled_here == 0);
}

TEST_CASE("closing: a closed server that nobody polls looks after its links when it is time") {
  const auto server = Server::create(1 << 20).value();
  TransportPair pair = Tcp::make();
  Peer peer;
  peer.address = "unix:";
  peer.pid = getpid();
  REQUIRE(server->join({std::make_unique<Behind>(std::move(pair.a)), std::move(peer)}, 1 << 20, {})
              .ok());
  server->close();
  CHECK(eventually([&] { return ports_of(*server).empty(); }));
}

TEST_CASE_TEMPLATE("closing: a closed client ends the calls under way at both ends", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  const auto link = server.house.connect<Way>();
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  link->close();
  CHECK(call->ended());
  CHECK(call->outcome().code == Code::kCancelled);
  CHECK(call->outcome().details == "the channel was closed");
  CHECK(served->wait_ended(patience()) == Waited::kDone);
  CHECK(unary(*link, "/t/New", {}).code == Code::kUnavailable);
  CHECK(eventually([&] { return ports_of(server.house.server()).empty(); }));
}

TEST_CASE_TEMPLATE("closing: a call that is over is not taken up", Way, TENSORWIRE_LINKS) {
  Open server;
  const Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  const uint64_t dropped = served->port().stats().dropped_calls;
  CHECK(served->take_up());
  CHECK(served->active());
  CHECK(served->take_up());  // it is being served
  CHECK(call->cancel(Code::kCancelled, ""));
  CHECK(served->wait_ended(patience()) == Waited::kDone);
  CHECK_FALSE(served->take_up());
  CHECK(served->port().stats().dropped_calls == dropped + 1);
}

TEST_CASE_TEMPLATE("closing: an abandoned link closes after its last call", Way, TENSORWIRE_LINKS) {
  Open server;
  const auto link = server.house.connect<Way>();
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  link->abandon();
  CHECK(link->link().alive());
  CHECK(finish(*served));
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
  CHECK(call->outcome().code == Code::kOk);
  CHECK(
      eventually([&] { return !link->link().alive() && ports_of(server.house.server()).empty(); }));
}

TEST_CASE_TEMPLATE("closing: links close while eight threads call on them", Way, TENSORWIRE_LINKS) {
  ArenaWatch arena;
  for (int round = 0; round < 6; ++round) {
    House house(echo);
    const auto link = house.connect<Way>();
    std::atomic<int> good{0}, wrong{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        const auto bytes = bytes_of(t % 2 ? 100 : 100'000, t);
        for (;;) {
          const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
          if (reply.code == Code::kOk) {
            wrong += !same(reply.segments.at(0), bytes);
            ++good;
            continue;
          }
          wrong += reply.code != Code::kUnavailable && reply.code != Code::kCancelled;
          return;
        }
      });
    CHECK(eventually([&] { return good >= 50; }));
    if (round % 2)
      link->link().close({Code::kCancelled, "enough"});
    else
      house.close();
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    link->link().close({Code::kCancelled, "the test is over"});
    CHECK(eventually([&] { return ports_of(house.server()).empty(); }));
  }
  CHECK(arena.restored());
}

// A client's link whose other end is in the hands of the test.
template <class Maker>
struct Loose {
  Loose() {
    TransportPair pair = make();
    peer = std::move(pair.b);
    Peer who;
    who.address = "test:";
    auto made = CallPort::create(runtime(), std::move(pair.a), std::move(who), 1 << 20);
    REQUIRE(made.ok());
    link = std::move(*made);
  }
  ~Loose() { link->link().close({Code::kCancelled, "the test is over"}); }
  // Devices have settings of their own.
  static TransportPair make() {
    if constexpr (requires { Maker::make({runtime().settings()}); })
      return Maker::make({runtime().settings()});
    else
      return Maker::make();
  }
  std::unique_ptr<Transport> peer;
  Ref<CallPort> link;
};

TEST_CASE_TEMPLATE("closing: a lost link ends every call, and every wait", Maker,
                   TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  ArenaWatch arena;
  {
    Loose<Maker> loose;
    const auto large = bytes_of(8 << 20);
    std::vector<std::thread> threads;
    std::atomic<int> unavailable{0};
    // Nobody takes anything at the other end: some wait for a reply, some for room.
    for (int t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        const Reply reply =
            unary(*loose.link, "/t/Lost", {out(t % 2 ? large : std::span(large).first(10))});
        unavailable += reply.code == Code::kUnavailable && !reply.details.empty();
      });
    const auto idle = start(*loose.link, "/t/Idle");
    REQUIRE(eventually([&] { return loose.link->calls() == 7; }));
    loose.peer.reset();
    for (auto& thread : threads) thread.join();
    CHECK(unavailable == 6);
    REQUIRE(idle->wait_ended(patience()) == Waited::kDone);
    CHECK(idle->outcome().code == Code::kUnavailable);
    CHECK_FALSE(loose.link->link().alive());
    CHECK(loose.link->link().death().code() == Code::kUnavailable);
    CHECK(loose.link->calls() == 0);
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("closing: a peer that breaks the protocol loses its link, and is told why",
                   Maker, TENSORWIRE_TRANSPORTS) {
  TENSORWIRE_NEEDS(Maker);
  Loose<Maker> loose;
  const auto call = start(*loose.link, "/t/Lost");
  const std::vector<std::byte> garbage(200, std::byte{0xff});
  const iovec run = run_of(garbage.data(), garbage.size());
  REQUIRE(*loose.peer->send({&run, 1}) == garbage.size());
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
  CHECK(call->outcome().code == Code::kUnavailable);
  CHECK(call->outcome().details.find("protocol error") != std::string::npos);
  CHECK(loose.link->link().death().code() == Code::kInternal);
}

}  // namespace
}  // namespace tw::test
