// SPDX-License-Identifier: Apache-2.0
// Memory that is lent over shared-memory links: when it comes home, and what happens when there is
// none.
#include <atomic>

#include "test/call/world.h"

namespace tw::test {
namespace {

// A server that keeps what it is sent until it is told to let go.
struct Keeper {
  Keeper()
      : house(
            [this](Ref<ServerCall> call) {
              InMessage request;
              if (call->method() == "/t/Beside") {
                go_on.take();
              } else if (receive(*call, request)) {
                std::lock_guard lock(mutex);
                kept.push_back(std::move(request));
              }
              finish(*call);
              return Ref<ServerCall>{};
            },
            2) {}

  // Of each message that is kept: whether it lies in the client's memory.
  std::vector<bool> keeps() {
    std::vector<bool> mapped;
    std::lock_guard lock(mutex);
    for (const InMessage& message : kept) mapped.push_back(message.segments[0].view() != nullptr);
    return mapped;
  }
  void let_go() {
    std::vector<InMessage> last;
    std::lock_guard lock(mutex);
    last.swap(kept);
  }

  std::mutex mutex;
  std::vector<InMessage> kept;
  Slot<bool> go_on;
  House house;
};

Ref<Block> published(size_t size) {
  auto block = runtime().arena().allocate(size);
  REQUIRE(block.ok());
  (*block)->publish();
  return std::move(*block);
}

// Replies with as many bytes of the server's own.
void lend(ServerCall& call) {
  InMessage request;
  if (!receive(call, request)) return;
  const std::vector<std::byte> own(request.segments[0].data,
                                   request.segments[0].data + request.segments[0].size);
  answer(call, {out(own)});
}

OutSegment lent(const Ref<Block>& block) { return out({block->data(), block->size()}); }

TEST_CASE("leases: what a server keeps after its reply comes home when it lets go") {
  ArenaWatch arena;
  Keeper keeper;
  Closing link(keeper.house.connect<ShmWay>());
  SUBCASE("on a link that is idle") {}
  SUBCASE("beside a call that goes on and says nothing") {
    start(*link, "/t/Beside");
    REQUIRE(eventually([&] { return keeper.house.server().active() == 1; }));
  }
  {
    const auto block = published(1 << 20);
    CHECK(unary(*link, "/t/Keep", {lent(block)}).code == Code::kOk);
    CHECK(link->stats().leases == 1);
    CHECK(link->stats().leased_bytes == 1 << 20);
  }
  CHECK(keeper.keeps().size() == 1);
  keeper.let_go();
  CHECK(arena.restored());
  CHECK(link->stats().leases == 0);
  keeper.go_on.put(true);
}

TEST_CASE("leases: a peer that hoards gets copies beyond what all leave free") {
  ArenaWatch arena;
  {
    Keeper keeper;
    Closing link(keeper.house.connect<ShmWay>());
    const size_t half = runtime().settings().buffer_bytes / 2;
    const auto large = published(half), small = published(1 << 20);
    CHECK(unary(*link, "/t/Keep", {lent(large)}).code == Code::kOk);
    CHECK(link->stats().sent.mapped_segments == 1);
    CHECK(link->stats().sent.crowded_segments == 0);
    CHECK(unary(*link, "/t/Keep", {lent(small)}).code == Code::kOk);
    const auto bytes = bytes_of(1 << 20);  // which would be copied there
    CHECK(unary(*link, "/t/Keep", {out(bytes)}).code == Code::kOk);
    const LinkStats stats = link->stats();
    CHECK(stats.sent.mapped_segments == 1);
    CHECK(stats.sent.pushed_segments == 2);
    CHECK(stats.copies == 0);
    CHECK(stats.sent.crowded_segments == 2);
    CHECK(stats.crowded_why.details().find("TENSORWIRE_BUFFER_BYTES") != std::string::npos);
    CHECK(keeper.keeps() == std::vector<bool>{true, false, false});
    // Another peer still gets its share.
    Closing other(keeper.house.connect<ShmWay>());
    CHECK(unary(*other, "/t/Keep", {lent(small)}).code == Code::kOk);
    CHECK(other->stats().sent.mapped_segments == 1);
    keeper.let_go();
    REQUIRE(eventually([&] { return link->stats().leases == 0; }));
    CHECK(unary(*link, "/t/Keep", {lent(small)}).code == Code::kOk);
    CHECK(link->stats().sent.mapped_segments == 2);
    keeper.let_go();
  }
  CHECK(arena.restored());
}

// All of the arena, in blocks that nobody has touched.
std::vector<Ref<Block>> take_all() {
  std::vector<Ref<Block>> blocks;
  for (size_t size = size_t{256} << 20; size >= 4096; size /= 2)
    for (;;) {
      auto block = runtime().arena().allocate(size);
      if (!block) {
        CHECK(block.status().code() == Code::kResourceExhausted);
        break;
      }
      blocks.push_back(std::move(*block));
    }
  return blocks;
}

TEST_CASE("leases: what goes back to its owner is copied by nobody") {
  ArenaWatch arena;
  Slot<bool> copied;
  House house([&](Ref<ServerCall> call) {
    InMessage request;
    if (!receive(*call, request)) return Ref<ServerCall>{};
    std::vector<OutSegment> segments = outs(request.segments);
    const uint64_t before = call->link().stats().copies;
    if (call->method() == "/t/Write") {
      request.segments[0].view()->expose();
      const_cast<std::byte*>(request.segments[0].data)[5] = std::byte{9};
    }
    if (call->method() == "/t/Part") segments[0] = out({segments[0].data + 5000, 100'000});
    stage(call->link(), segments);
    copied.put(call->link().stats().copies != before);
    call->finish(Code::kOk, {}, {}, true, segments);
    return Ref<ServerCall>{};
  });
  {
    Closing link(house.connect<ShmWay>());
    auto bytes = bytes_of(1 << 20);
    Reply reply;
    SUBCASE("whole") {
      reply = unary(*link, "/t/Echo", {out(bytes)});
      CHECK_FALSE(copied.take());
      CHECK(link->stats().received.returned_segments == 1);
    }
    SUBCASE("in part") {
      reply = unary(*link, "/t/Part", {out(bytes)});
      CHECK_FALSE(copied.take());
      bytes.erase(bytes.begin(), bytes.begin() + 5000);
      bytes.resize(100'000);
    }
    SUBCASE("but where it was written to") {
      reply = unary(*link, "/t/Write", {out(bytes)});
      CHECK(copied.take());
      bytes[5] = std::byte{9};
      CHECK(link->stats().received.returned_segments == 0);
    }
    CHECK(reply.code == Code::kOk);
    REQUIRE(reply.segments.size() == 1);
    CHECK(same(reply.segments[0], bytes));
    CHECK(eventually([&] { return link->stats().leases == 0; }));
    CHECK(same(reply.segments[0], bytes));
  }
  CHECK(arena.restored());
}

TEST_CASE("leases: a client sends back by name, to a server that knows how") {
  ArenaWatch arena;
  House house(lend);
  const auto bytes = bytes_of(1 << 20);
  for (const bool knows : {true, false}) {
    auto connected = meet::connect(runtime(), house.invitation("shm"), patience());
    REQUIRE(connected.ok());
    if (!knows) connected->peer.features &= ~wire::kReturned;
    const Closing link(CallPort::create(runtime(), std::move(connected->transport),
                                        std::move(connected->peer), 4 << 20)
                           .value());
    Reply reply = unary(*link, "/t/Lend", {out(bytes)});
    REQUIRE(reply.segments.size() == 1);
    CHECK(link->stats().copies == 1);
    const Reply again = unary(*link, "/t/Lend", outs(reply.segments));
    CHECK(link->stats().copies == (knows ? 1 : 2));
    CHECK(link->stats().sent.returned_segments == (knows ? 1 : 0));
    REQUIRE(again.segments.size() == 1);
    CHECK(same(again.segments[0], bytes));
  }
  CHECK(arena.restored());
}

TEST_CASE("leases: with a full arena calls are pushed, and nobody waits") {
  ArenaWatch arena;
  House house(echo);
  Closing link(house.connect<ShmWay>());
  const auto bytes = bytes_of(1 << 20);
  auto blocks = take_all();
  const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
  REQUIRE(reply.code == Code::kOk);
  CHECK(same(reply.segments.at(0), bytes));
  CHECK(reply.segments[0].view() == nullptr);
  CHECK(link->stats().sent.crowded_segments == 1);
  CHECK(link->stats().crowded_why.details().find("TENSORWIRE_BUFFER_BYTES") != std::string::npos);
  blocks.clear();
  CHECK(unary(*link, "/t/Echo", {out(bytes)}).segments.at(0).view() != nullptr);
  CHECK(link->stats().sent.crowded_segments == 1);
}

TEST_CASE("leases: a closed client keeps what it was lent, until its last view goes") {
  ArenaWatch arena;
  const auto bytes = bytes_of(300'000);
  {
    House house(lend);
    Reply reply;
    Ref<ServerCall> beside;
    {
      const auto link = house.connect<ShmWay>();
      reply = unary(*link, "/t/Lend", {out(bytes)});
      REQUIRE(reply.code == Code::kOk);
      REQUIRE(reply.segments[0].view() != nullptr);
      link->link().close({Code::kCancelled, "the channel was closed"});
      CHECK_FALSE(link->link().alive());
    }
    // The link lingers for the sake of the view, at both ends.
    CHECK(ports_of(house.server()).size() == 1);
    CHECK(same(reply.segments[0], bytes));
    reply.segments.clear();
    CHECK(eventually([&] { return ports_of(house.server()).empty(); }));
  }
  CHECK(arena.restored());
}

TEST_CASE("leases: a closed server leaves what it has lent, and gets it back") {
  ArenaWatch arena;
  const auto bytes = bytes_of(300'000);
  House house(lend);
  Closing link(house.connect<ShmWay>());
  Reply reply = unary(*link, "/t/Lend", {out(bytes)});
  REQUIRE(reply.code == Code::kOk);
  const auto beside = start(*link, "/t/Beside");
  house.close();
  // The calls end although the link lingers.
  REQUIRE(beside->wait_ended(patience()) == Waited::kDone);
  CHECK(beside->outcome().code == Code::kUnavailable);
  CHECK(ports_of(house.server()).size() == 1);
  CHECK(same(reply.segments[0], bytes));
  CHECK(link->stats().views == 1);
  reply.segments.clear();
  CHECK(arena.restored());
  CHECK(eventually([&] { return ports_of(house.server()).empty(); }));
}

TEST_CASE("leases: a server that nobody polls any more still gets back what it has lent") {
  ArenaWatch arena;
  const auto server = Server::create(1 << 20).value();
  const auto path = server->listener().listen_local();
  REQUIRE(path.ok());
  const auto ticket = server->listener().admit(runtime().hello(), 1, 30 * kSecond);
  REQUIRE(ticket.ok());
  Ref<CallPort> link;
  Reply reply;
  std::atomic<bool> replied{false};
  std::thread client([&] {
    meet::Invitation in{"shm:" + *path, ticket->session, ticket->secret, server->instance(),
                        runtime().hello()};
    auto connected = meet::connect(runtime(), in, patience());
    REQUIRE(connected.ok());
    link = CallPort::create(runtime(), std::move(connected->transport), std::move(connected->peer),
                            1 << 20)
               .value();
    const auto bytes = bytes_of(300'000);
    reply = unary(*link, "/t/Lend", {out(bytes)});
    replied = true;
    server->close();
  });
  std::vector<Ref<ServerCall>> calls;
  while (!replied) {
    const auto next = server->next(calls, 8, now() + 10 * kMillisecond);
    REQUIRE(next != Waited::kSignal);
    for (auto& call : calls) lend(*call);
    calls.clear();
  }
  client.join();
  CHECK(reply.code == Code::kOk);
  CHECK(ports_of(*server).size() == 1);
  reply.segments.clear();
  CHECK(eventually([&] { return ports_of(*server).empty(); }));
  link->link().close({Code::kCancelled, "the test is over"});
  CHECK(arena.restored());
}

TEST_CASE("leases: a server's call hears of a client that closes while it holds a lease") {
  Slot<Ref<ServerCall>> calls;
  House house(
      [&](Ref<ServerCall> call) {
        if (call->method() == "/t/Echo")
          echo(*call);
        else
          calls.put(call);
        return Ref<ServerCall>{};
      },
      1);
  const auto bytes = bytes_of(300'000);
  const auto link = house.connect<ShmWay>();
  const Reply reply = unary(*link, "/t/Echo", {out(bytes)});
  const auto call = start(*link, "/t/Long");
  const auto served = calls.take();
  link->link().close({Code::kCancelled, "the channel was closed"});
  CHECK(served->wait_ended(patience()) == Waited::kDone);
  CHECK(same(reply.segments.at(0), bytes));
}

TEST_CASE("leases: views go on any thread, in any order, while the link works and ends") {
  ArenaWatch arena;
  {
    House house(echo);
    const auto link = house.connect<ShmWay>();
    Slot<InSegment> bin;
    std::vector<std::thread> droppers;
    for (int t = 0; t < 2; ++t)
      droppers.emplace_back([&] {
        while (bin.take().hold) {
        }
      });
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (uint32_t t = 0; t < 3; ++t)
      callers.emplace_back([&, t] {
        const auto bytes = bytes_of(70'000, t);
        for (int i = 0; i < 100; ++i) {
          Reply reply = unary(*link, "/t/Echo", {out(bytes)});
          wrong += reply.code != Code::kOk || !same(reply.segments.at(0), bytes);
          if (reply.code == Code::kOk) bin.put(std::move(reply.segments[0]));
        }
      });
    for (auto& caller : callers) caller.join();
    link->link().close({Code::kCancelled, "while views are still there"});
    for (int t = 0; t < 2; ++t) bin.put({});
    for (auto& dropper : droppers) dropper.join();
    CHECK(wrong == 0);
    CHECK(eventually([&] { return ports_of(house.server()).empty(); }));
  }
  CHECK(arena.restored());
}

}  // namespace
}  // namespace tw::test
