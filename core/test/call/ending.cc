// SPDX-License-Identifier: Apache-2.0
// How calls end before their time: by either end, by their deadline, and by whoever is first.
#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>

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

}  // namespace
}  // namespace tw::test
