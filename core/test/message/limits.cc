// SPDX-License-Identifier: Apache-2.0
// What is not lent, and what is refused: the message in question goes another way or is thrown
// away, its stream and the link go on.
#include "test/message/fake_link.h"
#include "test/message/forge.h"

namespace tw::test {
namespace {

using wire::FrameType;
using wire::SegmentInfo;
using wire::SegmentKind;

Sample one_block(size_t size, uint64_t stream = 1) {
  return {stream, {}, {{Bytes(size, std::byte{0x3c}), Owner::kBlock}}};
}

Ref<Arena> arena_of(size_t pages) {
  return make_ref<Arena>(pages * page_size(), pages * page_size());
}

TEST_CASE("limits: a peer that sits on its leases gets copies until it gives some back") {
  const size_t page = page_size();
  FakeLink link({tiny(Bulk::kMap)}, {tiny(Bulk::kMap)}, arena_of(8));
  link.b.keep = true;
  const auto post_and_settle = [&] {
    REQUIRE(link.a.post(one_block(page)).ok());
    link.settle();
    REQUIRE(same(link.b.received.back(), one_block(page)));
  };
  for (int i = 0; i < 4; ++i) post_and_settle();
  CHECK(link.a.sender.leased_bytes() == 4 * page);
  CHECK(link.a.sender.crowded().ok());
  post_and_settle();
  CHECK(link.a.sender.leased_bytes() == 4 * page);
  CHECK(link.a.sender.leases() == 4);
  CHECK(link.a.sender.counters().mapped_segments == 4);
  CHECK(link.a.sender.counters().pushed_segments == 1);
  CHECK(link.a.sender.counters().crowded_segments == 1);
  CHECK(link.a.sender.crowded().code() == Code::kResourceExhausted);
  CHECK(link.b.received[4].leased == 0);

  link.b.kept.erase(link.b.kept.begin());
  link.settle();
  post_and_settle();
  CHECK(link.a.sender.counters().mapped_segments == 5);
  link.b.kept.clear();
  link.settle();
  check_idle(link.a);
}

TEST_CASE("limits: what has a quota is lent beside a peer's share, up to the quota") {
  const size_t page = page_size();
  FakeLink link({tiny(Bulk::kMap)}, {tiny(Bulk::kMap)}, arena_of(16));
  link.b.keep = true;
  const auto quota = make_ref<Quota>(3 * page);
  const auto post = [&](bool within) {
    link.a.quota = within ? quota : nullptr;
    REQUIRE(link.a.post(one_block(page)).ok());
    link.settle();
    return link.b.received.back().leased == 1;
  };
  for (int i = 0; i < 3; ++i) CHECK(post(true));
  CHECK(quota->leased() == 3 * page);
  CHECK(link.a.sender.leased_bytes() == 3 * page);
  CHECK(link.a.sender.share_bytes() == 0);
  // The share is what it is without the quota: half of the arena.
  for (int i = 0; i < 8; ++i) CHECK(post(false));
  CHECK(link.a.sender.share_bytes() == 8 * page);
  CHECK(link.a.sender.crowded().ok());
  CHECK_FALSE(post(false));
  CHECK_FALSE(post(true));
  CHECK(link.a.sender.crowded().details().find("a larger quota") != std::string::npos);
  CHECK(quota->copied() == 1);

  // All segments of a message count.
  link.b.kept.clear();
  link.settle();
  CHECK(quota->leased() == 0);
  CHECK(link.a.sender.share_bytes() == 0);
  link.a.quota = quota;
  Sample sample = one_block(page);
  for (int i = 0; i < 3; ++i) sample.parts.push_back(sample.parts[0]);
  REQUIRE(link.a.post(sample).ok());
  link.settle();
  CHECK(link.b.received.back().leased == 3);
  link.b.kept.clear();
  link.settle();
  check_idle(link.a);
  CHECK(quota->leased() == 0);
}

TEST_CASE("limits: what has a quota and is fetched counts in nothing but that, given up or not") {
  const size_t page = page_size();
  FakeLink link({tiny(Bulk::kRead)}, {tiny(Bulk::kRead)}, arena_of(8));
  const auto quota = make_ref<Quota>(4 * page);
  link.a.quota = quota;
  REQUIRE(link.a.post(one_block(page)).ok());
  CHECK(link.a.sender.leased_bytes() == page);
  CHECK(link.a.sender.share_bytes() == 0);
  link.settle();
  CHECK(link.a.sender.leased_bytes() == 0);
  CHECK(link.a.sender.share_bytes() == 0);
  CHECK(quota->leased() == 0);
  link.b.kept.clear();
  check_idle(link.a);
}

TEST_CASE("limits: segments of one message count against the limit, too") {
  FakeLink link({tiny(Bulk::kMap)}, {tiny(Bulk::kMap)}, arena_of(4));
  Sample sample = one_block(page_size());
  sample.parts.push_back(sample.parts[0]);
  sample.parts.push_back(sample.parts[0]);
  REQUIRE(link.a.post(sample).ok());
  link.settle();
  CHECK(same(link.b.received.at(0), sample));
  CHECK(link.a.sender.counters().mapped_segments == 2);
  CHECK(link.a.sender.counters().pushed_segments == 1);
}

TEST_CASE("limits: what is still to be offered counts as lent: its memory is not free either") {
  // More chunks than are offered at a time: the peer has been told of two.
  FakeLink link({tiny(Bulk::kRead)}, {tiny(Bulk::kRead)}, arena_of(2));
  const size_t size = page_size();
  REQUIRE(link.a.post(one_block(size)).ok());
  CHECK(link.a.sender.leases() == 2);
  CHECK(link.a.sender.leased_bytes() == size);
  REQUIRE(link.a.post(one_block(size, 2)).ok());
  CHECK(link.a.sender.counters().read_segments == 1);
  CHECK(link.a.sender.counters().pushed_segments == 1);
  link.settle();
  REQUIRE(link.b.received.size() == 2);
  CHECK(same(link.b.received[0], one_block(size, link.b.received[0].stream)));
  CHECK(same(link.b.received[1], one_block(size, link.b.received[1].stream)));
  check_idle(link.a);
}

TEST_CASE(
    "limits: a slab that cannot be shared is pushed, and its block freed with the last byte") {
  FakeLink link({tiny(Bulk::kMap)});
  link.a.shares = false;
  Sample sample = one_block(200);
  sample.parts.push_back({Bytes(5000, std::byte{9}), Owner::kBlock});
  sample.parts.push_back({Bytes(90, std::byte{8}), Owner::kSmallBlock});
  auto outgoing = link.a.post(sample);
  REQUIRE(outgoing.ok());
  CHECK_FALSE(*outgoing);  // nothing is the caller's
  CHECK(link.a.arena->stats().blocks == 3);
  link.settle();
  CHECK(same(link.b.received.at(0), sample));
  CHECK(link.b.received[0].leased == 0);
  CHECK(link.a.sender.counters().mapped_segments == 0);
  CHECK(link.a.sender.counters().pushed_segments == 3);
  CHECK(link.a.arena->stats().blocks == 0);
  // It is asked again for the next message.
  link.a.shares = true;
  REQUIRE(link.a.post(sample).ok());
  link.settle();
  CHECK(link.b.received.at(1).leased == 2);
  check_idle(link.a);
}

TEST_CASE("limits: a message above the receiver's limit is thrown away and its stream goes on") {
  for (const Bulk bulk : {Bulk::kPush, Bulk::kMap, Bulk::kRead}) {
    CAPTURE(static_cast<int>(bulk));
    const auto pool = make_ref<Pool>(size_t{1} << 20);
    EndOptions options{tiny(bulk)};
    options.max_message = 400;
    FakeLink link({tiny(bulk)}, options, make_ref<Arena>(size_t{64} << 20, size_t{16} << 20), pool);
    const Sample fits{1,
                      Bytes(4, std::byte{1}),
                      {{Bytes(100, std::byte{2}), Owner::kBlock},
                       {Bytes(20, std::byte{3}), Owner::kCaller},
                       {Bytes(280, std::byte{4}), Owner::kCaller}}};
    Sample large = fits;
    large.parts[2].bytes.push_back(std::byte{5});
    for (const Sample& sample : {fits, large, fits}) REQUIRE(link.a.post(sample).ok());
    link.settle();
    link.forge(link.a, announce(2, 4, SegmentKind::kInline, 401));
    link.settle();
    REQUIRE(link.b.received.size() == 4);
    std::vector<Received> stream_1;
    for (const Received& got : link.b.received) {
      if (got.stream == 1) {
        stream_1.push_back(got);
        continue;
      }
      check_says(got.status, Code::kResourceExhausted, {"401 bytes", "limit of 400 bytes"});
    }
    REQUIRE(stream_1.size() == 3);
    CHECK(same(stream_1[0], fits));
    CHECK(same(stream_1[2], fits));
    check_says(stream_1[1].status, Code::kResourceExhausted, {"401 bytes", "limit of 400 bytes"});
    CHECK(stream_1[1].header == large.header);  // whose it was is still known
    CHECK(stream_1[1].segments.empty());
    CHECK(stream_1[1].payload_bytes == 401);
    CHECK(link.b.receiver.counters().refused == 2);
    CHECK(pool->stats().used == 0);
    check_idle(link.a);  // leases have come home, reads have their FIN
    check_idle(link.b);
  }
}

// Larger than any pool gives: a peer may announce it, for a receiver without a limit of its own.
TEST_CASE("limits: no memory for a message refuses it, not the link") {
  EndOptions options{tiny(Bulk::kRead)};
  options.limits.max_message_bytes = uint64_t{1} << 60;
  options.limits.max_chunk_bytes = UINT32_MAX;
  options.limits.max_frame_body = UINT32_MAX;
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  FakeLink link(options, options, make_ref<Arena>(size_t{64} << 20, size_t{16} << 20), pool);
  link.log = false;

  SUBCASE("for one large segment") {
    const uint64_t huge = Pool::kLargest + 1;
    link.forge(link.a, message(1, 1,
                               {{3, SegmentKind::kInline, {}},
                                {40'000, SegmentKind::kPush, {}},
                                {20'000, SegmentKind::kPush, {}},
                                {20, SegmentKind::kEager, {}},
                                {huge, SegmentKind::kRead, {}},
                                {50, SegmentKind::kPush, {}}},
                               Bytes(8), Bytes(3)));
    link.forge(link.a, message(1, 2, {}, {}, {}));
    link.forge(link.a, data(1, 1, 1, 0, 40'000));
    link.forge(link.a, data(1, 1, 2, 0, 20'000));
    link.forge(link.a, eager(1, 1, 3, 1, 20));
    link.forge(link.a, data(1, 1, 5, 0, 50));
    link.settle();
    CHECK(link.b.received.empty());
    // Nothing is read, and each offer is still reported, so that it gets its FIN.
    for (uint64_t offset = 0; offset < huge;) {
      const auto length = std::min<uint64_t>(UINT32_MAX, huge - offset);
      link.forge(link.a, rts(1, 1, 4, offset, length));
      FakeLink::check(link.receive(link.b));
      for (const auto& read : link.b.receiver.take_reads()) {
        REQUIRE(read.destination == nullptr);
        FakeLink::check(link.b.receiver.read_done(read));
      }
      offset += length;
    }
    REQUIRE(link.b.received.size() == 2);
    CHECK(link.b.received[0].status.code() == Code::kResourceExhausted);
    CHECK(link.b.received[0].header == Bytes(8));
    CHECK(link.b.received[0].segments.empty());
    CHECK(link.b.received[1].status.ok());
    CHECK(link.b.receiver.counters().reads == 0);
    CHECK(link.b.receiver.counters().refused == 1);
    CHECK(pool->stats().used == 0);
  }
  SUBCASE("for the eager segments together") {
    link.forge(link.a, message(1, 1,
                               std::vector<SegmentInfo>(
                                   65'535, {UINT32_MAX - 1'000'000, SegmentKind::kEager, {}}),
                               Bytes(8), {}));
    // It is 256 TiB, of which nothing comes.
    link.forge(link.a, abort(1, 1));
    link.forge(link.a, message(1, 2, {}, {}, {}));
    link.settle();
    REQUIRE(link.b.received.size() == 1);
    CHECK(link.b.receiver.counters().refused == 0);
    CHECK(link.b.received[0].status.ok());
  }
  CHECK_FALSE(link.b.receiver.midway());
}

TEST_CASE("limits: many eager segments lie in recycled memory, aligned, and are let go") {
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  FakeLink link({usual(Bulk::kPush)}, {usual(Bulk::kPush)},
                make_ref<Arena>(size_t{64} << 20, size_t{16} << 20), pool);
  link.b.keep = true;
  Random random(5);
  Sample sample{1, random.bytes(11), {}};
  for (int i = 0; i < 10; ++i) sample.parts.push_back({random.bytes(16'381), Owner::kCaller});
  REQUIRE(link.a.post(sample).ok());
  link.settle();
  REQUIRE(same(link.b.received.at(0), sample));
  for (const InSegment& segment : link.b.kept.at(0).segments)
    CHECK(reinterpret_cast<uintptr_t>(segment.data) % 16 == 0);
  CHECK(pool->stats().used != 0);
  link.b.kept.clear();
  CHECK(pool->stats().used == 0);
  CHECK(pool->stats().idle != 0);
}

TEST_CASE(
    "limits: memory that cannot be mapped now refuses the message; a wrong one ends the link") {
  FakeLink link({tiny(Bulk::kMap)});
  Sample sample = one_block(100);
  sample.parts.push_back(sample.parts[0]);
  SUBCASE("refused") {
    link.b.map_status = {Code::kResourceExhausted, "no room to map it"};
    REQUIRE(link.a.post(sample).ok());
    REQUIRE(link.a.post(one_block(7)).ok());
    link.settle();
    REQUIRE(link.b.received.size() == 2);
    check_says(link.b.received[0].status, Code::kResourceExhausted, {"no room to map it"});
    CHECK(link.b.received[0].segments.empty());
    CHECK(link.b.receiver.counters().refused == 1);
    CHECK(same(link.b.received[1], one_block(7)));
    check_idle(link.a);
  }
  SUBCASE("ended") {
    link.b.map_status = {Code::kInternal, "protocol error: no such slab"};
    REQUIRE(link.a.post(sample).ok());
    link.send(link.a);
    check_says(link.receive(link.b), Code::kInternal, {"no such slab"});
    CHECK(link.b.received.empty());
  }
}

TEST_CASE("limits: whoever cannot map a slab refuses one message, and is pushed the others") {
  EndOptions cannot{tiny(Bulk::kMap)};
  cannot.peer_slabs = 0;
  FakeLink link({tiny(Bulk::kMap)}, cannot);
  REQUIRE(link.a.post(one_block(100)).ok());
  REQUIRE(link.a.post(one_block(7)).ok());
  link.settle();
  REQUIRE(link.b.received.size() == 2);
  check_says(link.b.received[0].status, Code::kResourceExhausted,
             {"slab", "more than the 0 slabs"});
  CHECK(same(link.b.received[1], one_block(7)));
  CHECK(link.a.sender.counters().unmappable == 1);
  check_idle(link.a);

  REQUIRE(link.a.post(one_block(100)).ok());
  link.settle();
  CHECK(same(link.b.received.at(2), one_block(100)));
  CHECK(link.a.sender.counters().unshared_segments == 1);
  check_says(link.a.sender.unshared(), Code::kResourceExhausted, {"the peer has no means to map"});
  check_idle(link.a);
}

TEST_CASE("limits: only what is out on a lease can be unmappable") {
  FakeLink link({tiny(Bulk::kRead)});
  REQUIRE(link.a.post(one_block(100)).ok());
  check_says(link.a.sender.on_unmappable(1), Code::kInternal, {"UNMAPPABLE", "lease is 1"});
  check_says(link.a.sender.on_unmappable(77), Code::kInternal, {"UNMAPPABLE", "lease is 77"});
  link.lose();
  CHECK(link.a.sender.on_unmappable(77).ok());
}

TEST_CASE("limits: what waits behind an unfinished message is charged when it is announced") {
  EndOptions options{tiny(Bulk::kPush)};
  options.window = 300;
  FakeLink link(options);
  const auto first = message(1, 1, {{40, SegmentKind::kPush, {}}}, Bytes(3), {});
  link.forge(link.a, first);
  link.forge(link.a, message(1, 2, {{100, SegmentKind::kInline, {}}}, Bytes(5), Bytes(100)));
  link.forge(link.a, announce(1, 3, SegmentKind::kEager, 159));
  link.settle();
  REQUIRE(link.b.waited.size() == 3);
  CHECK(link.b.waited[0].credit == 0);
  CHECK(link.b.waited[1].credit == 40);
  CHECK(link.b.waited[1].header_bytes == 3);
  CHECK(link.b.waited[2].credit == 140);
  CHECK(link.b.waited[2].header_bytes == 8);

  SUBCASE("a message beyond the window ends the link before any memory is taken for it") {
    link.forge(link.a, announce(1, 4, SegmentKind::kPush, 50'000));  // passes, into the red
    link.settle();
    const size_t used = link.b.pool->stats().used;
    link.forge(link.a, announce(1, 5, SegmentKind::kPush, 50'000));
    check_says(link.receive(link.b), Code::kInternal, {"without credit"});
    CHECK(link.b.pool->stats().used == used);
    CHECK(link.b.received.empty());
  }
  SUBCASE("other streams have a window of their own") {
    link.forge(link.a, announce(1, 4, SegmentKind::kPush, 50'000));
    link.forge(link.a, announce(2, 5, SegmentKind::kPush, 50'000));
    link.settle();
    CHECK(link.b.waited.back().credit == 0);
  }
  SUBCASE("a message that is aborted costs nothing any more") {
    link.forge(link.a, abort(1, 3));
    link.forge(link.a, announce(1, 4, SegmentKind::kPush, 1));
    link.settle();
    CHECK(link.b.waited.back().credit == 140);
  }
  SUBCASE("nor one that was handed up") {
    link.forge(link.a, data(1, 1, 0, 0, 40));
    link.forge(link.a, announce(1, 4, SegmentKind::kInline, 0));
    link.settle();
    CHECK(link.b.received.size() == 2);
    CHECK(link.b.waited.back().credit == 159);
    CHECK(link.b.waited.back().header_bytes == 0);
    // Once all were, nothing has to wait.
    link.forge(link.a, eager(1, 3, 0, 1, 159));
    link.forge(link.a, announce(1, 5, SegmentKind::kInline, 9));
    link.settle();
    CHECK(link.b.received.size() == 5);
    CHECK(link.b.waited.size() == 4);
  }
}

}  // namespace
}  // namespace tw::test
