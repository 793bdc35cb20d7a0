// SPDX-License-Identifier: Apache-2.0
// Calls whose large segments are fetched by the receiver: what becomes of their memory when the
// device is slow, fails, or is stopped in the middle.
#include <atomic>
#include <map>

#include "test/call/world.h"

namespace tw::test {
namespace {

constexpr size_t kMB = 1 << 20;

// A server with what a client has sent, and what its link says of it.
struct Sink {
  Sink()
      : house(
            [this](Ref<ServerCall> call) {
              InMessage request;
              if (receive(*call, request)) {
                links.put(Ref<CallPort>::share(&call->port()));
                got.put(std::move(request));
              }
              finish(*call);
              return Ref<ServerCall>{};
            },
            2) {}

  Slot<Ref<CallPort>> links;
  Slot<InMessage> got;
  House house;
};

Ref<Block> published(const std::vector<std::byte>& bytes) {
  auto block = block_of(bytes);
  block->publish();
  return block;
}

OutSegment whole(const Ref<Block>& block) { return out({block->data(), block->size()}); }

TEST_CASE("fetching: 10 MB at a chunk of 4 MB are 3 ready-to-sends and 3 reads, not one by one") {
  ArenaWatch arena;
  {
    Sink sink;
    Closing link(sink.house.connect<ReadWay>());
    const auto bytes = bytes_of(10 * kMB);
    sink.house.device->hold_up(true);
    std::thread caller([&] {
      const auto block = published(bytes);
      CHECK(unary(*link, "/t/Take", {whole(block)}).code == Code::kOk);
    });
    REQUIRE(eventually([&] { return sink.house.device->under_way() == 3; }));
    CHECK(link->stats().leases == 3);
    sink.house.device->hold_up(false);
    caller.join();
    const InMessage got = sink.got.take();
    REQUIRE(got.segments.size() == 1);
    CHECK(same(got.segments[0], bytes));
    CHECK(got.segments[0].view() == nullptr);
    const LinkStats sent = link->stats();
    CHECK(sent.copies == 0);
    CHECK(sent.sent.read_segments == 1);
    CHECK(sent.sent.ready_to_sends == 3);
    CHECK(sent.leases == 0);
    const LinkStats received = sink.links.take()->stats();
    CHECK(received.received.read_segments == 1);
    CHECK(received.received.reads == 3);
    CHECK(received.received.read_bytes == 10 * kMB);
    CHECK(received.received.arena_buffers == 1);
    CHECK(received.received.pool_buffers == 0);
    CHECK(received.fetches == 0);
    CHECK(sink.house.device->started() == 3);
  }
  CHECK(arena.restored());
}

TEST_CASE("fetching: more chunks than the device takes wait for their turn") {
  Sink sink;
  Closing link(sink.house.connect<ReadWay>());
  const auto bytes = bytes_of(40 * kMB);
  const auto block = published(bytes);
  CHECK(unary(*link, "/t/Take", {whole(block), whole(block)}).code == Code::kOk);
  const InMessage got = sink.got.take();
  REQUIRE(got.segments.size() == 2);
  for (const InSegment& segment : got.segments) CHECK(same(segment, bytes));
  CHECK(sink.house.device->started() == 20);
  CHECK(sink.house.device->most_under_way() <= 3);
}

TEST_CASE(
    "fetching: received memory lies in the arena, and is forwarded with a copy unless it is "
    "published") {
  ArenaWatch arena;
  {
    Sink first, second;
    Closing link(first.house.connect<ReadWay>()), next(second.house.connect<ReadWay>());
    const auto bytes = bytes_of(kMB);
    {
      const auto block = published(bytes);
      CHECK(unary(*link, "/t/Take", {whole(block)}).code == Code::kOk);
    }
    InMessage got = first.got.take();
    const InSegment& segment = got.segments.at(0);
    const auto block = runtime().arena().find(segment.data, segment.size);
    REQUIRE(block);
    CHECK_FALSE(block->published());
    CHECK(unary(*next, "/t/Take", outs(got.segments)).code == Code::kOk);
    CHECK(same(second.got.take().segments.at(0), bytes));
    CHECK(next->stats().copies == 1);
    block->publish();
    CHECK(unary(*next, "/t/Take", outs(got.segments)).code == Code::kOk);
    CHECK(same(second.got.take().segments.at(0), bytes));
    CHECK(next->stats().copies == 1);
  }
  CHECK(arena.restored());
}

TEST_CASE("fetching: what finds no room in the arena lands in the pool") {
  Sink sink;
  Closing link(sink.house.connect<ReadWay>());
  const auto bytes = bytes_of(3 * kMB);
  const auto block = published(bytes);
  std::vector<Ref<Block>> all;
  for (size_t size = size_t{256} << 20; size >= 4096; size /= 2)
    while (auto more = runtime().arena().allocate(size)) all.push_back(std::move(*more));
  CHECK(unary(*link, "/t/Take", {whole(block)}).code == Code::kOk);
  const InMessage got = sink.got.take();
  CHECK(same(got.segments.at(0), bytes));
  CHECK_FALSE(runtime().arena().find(got.segments[0].data, 1));
  const LinkStats stats = sink.links.take()->stats();
  CHECK(stats.received.arena_buffers == 0);
  CHECK(stats.received.pool_buffers == 1);
}

TEST_CASE("fetching: a slab that cannot be shared is pushed, and the link says why") {
  Sink sink;
  Closing link(sink.house.connect<ReadWay>());
  sink.house.device->refuse_to_share({Code::kResourceExhausted, "no memory to pin"});
  const auto bytes = bytes_of(kMB);
  const auto block = published(bytes);
  CHECK(unary(*link, "/t/Take", {whole(block)}).code == Code::kOk);
  CHECK(same(sink.got.take().segments.at(0), bytes));
  const LinkStats stats = link->stats();
  CHECK(stats.sent.read_segments == 0);
  CHECK(stats.sent.pushed_segments == 1);
  CHECK(stats.sent.unshared_segments == 1);
  CHECK(stats.unshared.details() == "no memory to pin");
  CHECK(sink.house.device->started() == 0);
}

TEST_CASE("fetching: a message above the receiver's limit is refused without a fetch") {
  ArenaWatch arena;
  {
    const auto bytes = bytes_of(9 * kMB);
    House house(
        [](Ref<ServerCall> call) {
          InMessage request;
          if (receive(*call, request)) answer(*call, outs(request.segments));
          return Ref<ServerCall>{};
        },
        1, kMB);
    Closing link(house.connect<ReadWay>());
    const auto block = published(bytes);
    CHECK(unary(*link, "/t/Echo", {whole(block)}).code == Code::kResourceExhausted);
    CHECK(house.device->started() == 0);
    CHECK(eventually([&] { return link->stats().leases == 0; }));
    // The link goes on.
    CHECK(unary(*link, "/t/Echo", {out(std::span(bytes).first(kMB))}).code == Code::kOk);
  }
  CHECK(arena.restored());
}

TEST_CASE("fetching: a fetch that fails ends the link's calls as unavailable") {
  ArenaWatch arena;
  {
    Sink sink;
    Closing link(sink.house.connect<ReadWay>());
    sink.house.device->fail_next({Code::kUnavailable, "retries exceeded"});
    const auto block = published(bytes_of(9 * kMB));
    const Reply reply = unary(*link, "/t/Take", {whole(block)});
    CHECK(reply.code == Code::kUnavailable);
    CHECK(eventually([&] { return ports_of(sink.house.server()).empty(); }));
    CHECK(sink.house.device->revocations() >= 1);
  }
  CHECK(arena.restored());
}

TEST_CASE("fetching: memory that the device does not take refuses one message, not the link") {
  ArenaWatch arena;
  {
    Sink sink;
    Closing link(sink.house.connect<ReadWay>());
    const auto bytes = bytes_of(9 * kMB);
    sink.house.device->refuse_next({Code::kResourceExhausted, "locked memory is limited"});
    const Reply refused = unary(*link, "/t/Take", {whole(published(bytes))});
    CHECK(refused.code == Code::kResourceExhausted);
    CHECK(refused.details.find("locked memory is limited") != std::string::npos);
    CHECK(eventually([&] { return link->stats().leases == 0; }));
    CHECK(sink.house.device->started() == 0);
    CHECK(unary(*link, "/t/Take", {whole(published(bytes))}).code == Code::kOk);
    CHECK(same(sink.got.take().segments[0], bytes));
  }
  CHECK(arena.restored());
}

// Owns the memory of a segment, and tells when it is let go of.
class Canary final : public RefCounted {
 public:
  Canary(Ref<Block> block, std::atomic<bool>& free) : block_(std::move(block)), free_(free) {}
  ~Canary() override { free_ = true; }

 private:
  const Ref<Block> block_;
  std::atomic<bool>& free_;
};

TEST_CASE("fetching: a lost link's memory is let go of only after the device was stopped") {
  ArenaWatch arena;
  {
    Sink sink;
    const auto link = sink.house.connect<ReadWay>();
    const auto device = sink.house.device;
    device->hold_up(true);
    const auto bytes = bytes_of(9 * kMB);
    std::atomic<bool> freed{false};
    auto call = link->new_call(kForever);
    REQUIRE(call.ok());
    {
      Ref<Block> block = block_of(bytes);
      std::vector<OutSegment> segments = {whole(block)};
      segments[0].hold = make_ref<Canary>(std::move(block), freed);
      stage((*call)->link(), segments);
      REQUIRE((*call)->begin("/t/Take", {}, segments, true, true, false).ok());
    }
    REQUIRE(eventually([&] { return device->under_way() == 3; }));
    const size_t used = runtime().arena().stats().used;
    CHECK(used >= 18 * kMB);  // at both ends
    std::atomic<int> looks{0}, early{0};
    device->on_revoke([&] {
      if (looks++ == 0) early += freed || runtime().arena().stats().used != used;
    });
    CHECK_FALSE(freed);
    SUBCASE("the reader dies") { sink.house.die(House::End::kServer); }
    SUBCASE("the owner dies") { sink.house.die(House::End::kClient); }
    CHECK(eventually([&] { return freed.load(); }));
    CHECK((*call)->wait_ended(patience()) == Waited::kDone);
    CHECK((*call)->outcome().code == Code::kUnavailable);
    CHECK(looks >= 1);
    CHECK(early == 0);
    CHECK(eventually([&] { return ports_of(sink.house.server()).empty(); }));
  }
  CHECK(arena.restored());
}

TEST_CASE("fetching: a link that closes ends what it fetches first") {
  ArenaWatch arena;
  {
    Sink sink;
    const auto link = sink.house.connect<ReadWay>();
    const auto device = sink.house.device;
    device->hold_up(true);
    const auto block = published(bytes_of(9 * kMB));
    std::thread caller(
        [&] { CHECK(unary(*link, "/t/Take", {whole(block)}).code == Code::kUnavailable); });
    REQUIRE(eventually([&] { return device->under_way() == 3; }));
    for (const auto& served : ports_of(sink.house.server()))
      served->link().close({Code::kCancelled, "the test is over"});
    REQUIRE(eventually([&] { return !link->link().alive(); }));
    CHECK(link->stats().leases == 3);
    CHECK(ports_of(sink.house.server()).size() == 1);
    device->hold_up(false);
    caller.join();
    CHECK(eventually([&] { return ports_of(sink.house.server()).empty(); }));
    CHECK(device->revocations() == 0);
    CHECK(eventually([&] { return link->stats().leases == 0; }));
  }
  CHECK(arena.restored());
}

TEST_CASE("fetching: what is given up under a fetch keeps its memory until the fetch has ended") {
  ArenaWatch arena;
  {
    Sink sink;
    Closing link(sink.house.connect<ReadWay>());
    const auto device = sink.house.device;
    device->hold_up(true);
    // One segment is fetched, the other is the caller's and pushed: that one can be given up.
    const auto block = published(bytes_of(3 * kMB));
    const auto pushed = bytes_of(60 * kMB);
    auto call = link->new_call(kForever);
    REQUIRE(call.ok());
    std::vector<OutSegment> segments = {whole(block), out(pushed)};
    segments[0].block = block;
    auto begun = (*call)->begin("/t/Take", {}, segments, true, true, false);
    REQUIRE(begun.ok());
    REQUIRE(*begun);
    REQUIRE(eventually([&] { return device->under_way() == 1; }));
    const size_t used = runtime().arena().stats().used;
    if ((*call)->withdraw(*begun)) {
      (*call)->cancel(Code::kCancelled, "");
      // The ABORT has been heard once a later call is through.
      CHECK(unary(*link, "/t/Take", {out(std::span(pushed).first(10))}).code == Code::kOk);
      CHECK(runtime().arena().stats().used == used);
      CHECK(link->stats().leases == 1);
    }
    device->hold_up(false);
    CHECK(eventually([&] { return link->stats().leases == 0; }));
  }
  CHECK(arena.restored());
}

}  // namespace
}  // namespace tw::test
