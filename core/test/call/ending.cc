// SPDX-License-Identifier: Apache-2.0
// How calls end before their time: cancellation, deadlines, closed and lost links.
#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>

#include "test/call/world.h"
#include "test/transport/pair.h"

namespace tw::test {
namespace {

TEST_CASE_TEMPLATE("ending: the client cancels", Way, TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  CHECK(served->active());
  CHECK(call->cancel(Code::kCancelled, "changed my mind"));
  CHECK_FALSE(call->cancel(Code::kAborted, "again"));
  CHECK(call->ended());
  CHECK(call->outcome().code == Code::kCancelled);
  CHECK(call->outcome().details == "changed my mind");
  CHECK_FALSE(send(*call, {}));

  CHECK(served->wait_ended(patience()) == Waited::kDone);
  CHECK_FALSE(served->active());
  InMessage message;
  CHECK_FALSE(receive(*served, message));
  CHECK_FALSE(finish(*served));
  CHECK_FALSE(send(*served, {}));
  CHECK(link->calls() == 0);
  CHECK(server.house.server().active() == 0);
}

TEST_CASE_TEMPLATE("ending: the server ends a call while the client is still sending", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  const auto bytes = bytes_of(3 << 20);
  std::thread sender([&] {
    while (send(*call, {out(bytes)})) {
    }
  });
  InMessage message;
  REQUIRE(receive(*served, message));
  CHECK(finish(*served, Code::kOutOfRange, "enough"));
  sender.join();
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);
  CHECK(call->outcome().code == Code::kOutOfRange);
  CHECK(call->outcome().details == "enough");
  CHECK(unary(*link, "/t/Late", {}, now()).code == Code::kDeadlineExceeded);
}

// False: the call came too late to be handed out.
template <class Way>
bool ended_by_its_deadline(Nanos time) {
  Open server;
  Closing link(server.house.connect<Way>());
  auto queue = make_ref<EventQueue>();
  const Nanos deadline = now() + time;
  const auto call = start(*link, "/t/Long", deadline);
  call->notify(Call::Happening::kEnded, queue, 77);
  const auto taken = server.calls.take_within(time);
  if (!taken) return false;
  const auto& served = *taken;
  CHECK(served->deadline() <= now() + time);
  std::vector<uint64_t> tokens;
  REQUIRE(take_tokens(*queue, tokens, 10, patience()) == Waited::kDone);
  CHECK(tokens == std::vector<uint64_t>{77});
  CHECK(now() >= deadline);
  CHECK(call->outcome().code == Code::kDeadlineExceeded);
  CHECK(served->wait_ended(patience()) == Waited::kDone);
  return true;
}

TEST_CASE_TEMPLATE("ending: a deadline ends a call that nobody waits for", Way, TENSORWIRE_LINKS) {
  until_enough(20 * kMillisecond, ended_by_its_deadline<Way>);
}

TEST_CASE_TEMPLATE(
    "ending: a closed link goes, and no call of it that ended in time leaves a timer", Way,
    TENSORWIRE_WAYS) {
  Open server;
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  constexpr int kLinks = 20;  // more than what a process opens once
  for (int i = 0; i < kLinks; ++i) {
    const auto link = server.house.connect<Way>();
    const auto quick = start(*link, "/t/Long", now() + 3600 * kSecond);
    CHECK(finish(*server.calls.take()));
    REQUIRE(quick->wait_ended(patience()) == Waited::kDone);
    link->link().close({Code::kCancelled, "the test is over"});
  }
  // Both ends of a link have descriptors, and a timer would keep its call, and that its link.
  CHECK(eventually([&] { return descriptors() < before + kLinks; }));
}

TEST_CASE_TEMPLATE("ending: who ends a call wakes the thread that waits for it and drives", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long");
  const auto served = server.calls.take();
  const auto links = ports_of(server.house.server());
  REQUIRE(links.size() == 1);
  const auto sleeps = [](CallPort& of) { return of.stats().sleeps; };
  const uint64_t before = sleeps(*links[0]);

  // Nobody else waits on either link, so each of the two drives its own.
  InMessage message;
  std::thread handler([&] { CHECK_FALSE(receive(*served, message)); });
  REQUIRE(eventually([&] { return sleeps(*links[0]) > before; }));
  CHECK(finish(*served, Code::kAborted));
  handler.join();
  REQUIRE(call->wait_ended(patience()) == Waited::kDone);

  const auto other = start(*link, "/t/Long");
  const uint64_t so_far = sleeps(*link);
  std::thread caller([&] { CHECK(other->wait_ended(patience()) == Waited::kDone); });
  REQUIRE(eventually([&] { return sleeps(*link) > so_far; }));
  CHECK(other->cancel(Code::kCancelled, "by another thread"));
  caller.join();
}

TEST_CASE_TEMPLATE("ending: who reads the last message wakes the thread that waits for the end",
                   Way, TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long", kForever, {}, true);
  const auto served = server.calls.take();
  REQUIRE(send(*served, {out(bytes_of(8))}));
  CHECK(finish(*served));
  REQUIRE(eventually([&] {
    (void)call->wait_message(now());
    return call->has_message();
  }));
  const uint64_t before = link->stats().sleeps;
  std::thread waits([&] { CHECK(call->wait_ended(patience()) == Waited::kDone); });
  const bool asleep = eventually([&] { return link->stats().sleeps > before; });
  InMessage message;
  CHECK(call->take(message));
  waits.join();
  CHECK(asleep);
}

// Does something while it is let go of.
class Parting final : public RefCounted {
 public:
  explicit Parting(std::function<void()> what) : what_(std::move(what)) {}

 private:
  ~Parting() override { what_(); }
  const std::function<void()> what_;
};

TEST_CASE_TEMPLATE("ending: a last message that comes while another one is taken is read", Way,
                   TENSORWIRE_LINKS) {
  Open server;
  Closing link(server.house.connect<Way>());
  const auto call = start(*link, "/t/Long", kForever, {}, true);
  const auto served = server.calls.take();
  REQUIRE(send(*served, {out(bytes_of(8))}));
  REQUIRE(eventually([&] { return call->has_message(); }));
  InMessage message;
  // What `message` holds is let go of when the first one has been taken.
  message.segments.push_back({nullptr, 0, make_ref<Parting>([&] {
                                CHECK(answer(*served, {out(bytes_of(9))}));
                                CHECK(eventually([&] { return call->over(); }));
                              })});
  REQUIRE(call->take(message));
  CHECK(message.payload_bytes == 8);
  CHECK_FALSE(call->ended());
  REQUIRE(call->take(message));
  CHECK(message.payload_bytes == 9);
  CHECK(call->ended());
}

TEST_CASE_TEMPLATE("ending: whatever races to end a call, it ends once", Way, TENSORWIRE_LINKS) {
  // A call that comes too late is not handed out.
  House house(+[](ServerCall& call) {
    if (call.method() == "/t/Race")
      finish(call, Code::kNotFound, "finished");
    else
      CHECK(call.wait_ended(patience()) == Waited::kDone);
  });
  Closing link(house.connect<Way>());
  auto queue = make_ref<EventQueue>();
  constexpr uint64_t kRounds = 150;
  for (uint64_t i = 0; i < kRounds; ++i) {
    const auto call =
        start(*link, i % 3 ? "/t/Race" : "/t/Silent", now() + static_cast<Nanos>(i % 5) * 200'000);
    call->notify(Call::Happening::kEnded, queue, i);
    std::atomic<int> cancelled{0};
    std::thread canceller([&] { cancelled += call->cancel(Code::kAborted, "cancelled"); });
    canceller.join();
    REQUIRE(call->wait_ended(patience()) == Waited::kDone);
    const Code code = call->outcome().code;
    CHECK((code == Code::kAborted || code == Code::kNotFound || code == Code::kDeadlineExceeded));
    CHECK((code == Code::kAborted) == (cancelled == 1));
    CHECK_FALSE(call->outcome().details.empty());
  }
  std::vector<uint64_t> tokens, seen;
  while (seen.size() < kRounds) {
    REQUIRE(take_tokens(*queue, tokens, 1000, patience()) == Waited::kDone);
    seen.insert(seen.end(), tokens.begin(), tokens.end());
  }
  CHECK(take_tokens(*queue, tokens, 1, 0) == Waited::kTimeout);
  std::sort(seen.begin(), seen.end());
  for (uint64_t i = 0; i < kRounds; ++i) CHECK(seen[i] == i);
  CHECK(eventually([&] { return house.server().active() == 0; }));
  CHECK(link->calls() == 0);
}

TEST_CASE_TEMPLATE("ending: a request given up half-way leaves the caller's memory alone", Way,
                   TENSORWIRE_LINKS) {
  ArenaWatch arena;
  {
    House house(echo);
    Closing link(house.connect<Way>());
    int late = 0;
    for (Nanos time : {0, 1, 100, 500, 1000, 3000, 10'000}) {
      auto bytes = std::make_unique<std::vector<std::byte>>(bytes_of(16 << 20));
      const Reply reply = unary(*link, "/t/Echo", {out(*bytes)}, now() + time * kMicrosecond);
      CHECK((reply.code == Code::kOk || reply.code == Code::kDeadlineExceeded));
      late += reply.code != Code::kOk;
      bytes.reset();
      const auto small = bytes_of(100'000, 1);
      const Reply next = unary(*link, "/t/Echo", {out(small)});
      REQUIRE(next.code == Code::kOk);
      CHECK(same(next.segments[0], small));
    }
    CHECK(late >= 1);
  }
  CHECK(arena.restored());
}

TEST_CASE_TEMPLATE("ending: a server that refuses finishes what it has begun", Way,
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

TEST_CASE_TEMPLATE("ending: a closed server ends the calls under way at both ends", Way,
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

TEST_CASE("ending: a call that crosses the other end's close is answered") {
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

TEST_CASE("ending: a call that comes while the other end closes is answered") {
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

TEST_CASE("ending: a reply whose call is cancelled while it begins is given up") {
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

TEST_CASE("ending: a link that nobody looks after yet tells its peer that its server goes") {
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

TEST_CASE("ending: nobody polls for a closed server beside the background") {
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

TEST_CASE("ending: a closed server that nobody polls looks after its links when it is time") {
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

TEST_CASE_TEMPLATE("ending: a closed client ends the calls under way at both ends", Way,
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

TEST_CASE_TEMPLATE("ending: a call that is over is not taken up", Way, TENSORWIRE_LINKS) {
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

TEST_CASE_TEMPLATE("ending: an abandoned link closes after its last call", Way, TENSORWIRE_LINKS) {
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

TEST_CASE_TEMPLATE("ending: links close while eight threads call on them", Way, TENSORWIRE_LINKS) {
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

TEST_CASE_TEMPLATE("ending: a lost link ends every call, and every wait", Maker,
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

TEST_CASE_TEMPLATE("ending: a peer that breaks the protocol loses its link, and is told why", Maker,
                   TENSORWIRE_TRANSPORTS) {
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
