// SPDX-License-Identifier: Apache-2.0
// Giving up a message at every step of its way: its memory is the caller's again at once, the peer
// drops it, and what comes after it arrives.
#include <set>

#include "base/shortage.h"
#include "test/message/fake_link.h"
#include "test/not_tried.h"
#include "test/sanitized.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

using wire::FrameType;

// Memory of every kind, borrowed and pushed before and after what is lent.
Sample given_up(Random& random) {
  return {1,
          random.bytes(9),
          {{random.bytes(5), Owner::kCaller},
           {random.bytes(150), Owner::kCaller},
           {random.bytes(20), Owner::kCaller},
           {random.bytes(300), Owner::kBlock},
           {random.bytes(64), Owner::kHold},
           {random.bytes(130), Owner::kCaller}}};
}

void withdraw(End& end, const Ref<Outgoing>& outgoing) {
  end.sender.withdraw(outgoing);
  REQUIRE_FALSE(outgoing->borrowed());
  end.reclaim();  // frees the memory
}

// Of all that the sender offers.
size_t gathered(Sender& sender) {
  std::array<iovec, 8> room;
  const size_t runs = sender.gather(room);
  size_t bytes = 0;
  for (size_t i = 0; i < runs; ++i) bytes += room[i].iov_len;
  return bytes;
}

// False once the whole message was sent before `budget` was spent.
bool withdraw_after(size_t budget, size_t piece, Bulk bulk) {
  INFO("withdrawn after " << budget << " bytes and steps, bulk " << static_cast<int>(bulk)
                          << ", in pieces of " << piece);
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  static const auto arena = make_ref<Arena>(size_t{64} << 20, size_t{16} << 20);
  Random random(3);
  bool begun;
  {
    FakeLink link({tiny(bulk)}, {tiny(bulk)}, arena, pool);
    const std::vector<Sample> samples = {
        given_up(random),
        {1, {}, {{random.bytes(70), Owner::kCaller}, {random.bytes(100), Owner::kBlock}}},
        {2, {}, {{random.bytes(90), Owner::kHold}}},
        {1, {}, {{random.bytes(2), Owner::kHold}}}};
    auto first = link.a.post(samples[0]);
    REQUIRE(first.ok());
    REQUIRE(*first);
    REQUIRE(link.a.post(samples[1]).ok());
    link.settle(budget, piece);
    begun = (*first)->borrowed();
    withdraw(link.a, *first);
    REQUIRE(link.a.post(samples[2]).ok());
    REQUIRE(link.a.post(samples[3]).ok());
    link.settle();

    const size_t aborts = count(link.frames_from(link.a), FrameType::kAbort);
    REQUIRE(aborts <= begun);
    // Aborted and dropped, or whole and in its place.
    std::vector<size_t> stream_1, stream_2;
    if (aborts == 0) stream_1.push_back(0);
    stream_1.insert(stream_1.end(), {1, 3});
    stream_2.push_back(2);
    REQUIRE(link.b.received.size() == stream_1.size() + stream_2.size());
    for (const Received& got : link.b.received) {
      auto& due = got.stream == 1 ? stream_1 : stream_2;
      REQUIRE(same(got, samples[due.front()]));
      due.erase(due.begin());
    }
    check_idle(link.a);
    check_idle(link.b);
  }
  REQUIRE(pool->stats().used == 0);
  REQUIRE(arena->stats().blocks == 0);
  return begun;
}

// Of bytes: a sanitizer makes each try slow.
constexpr size_t kStep = kSanitized ? 7 : 1;

TEST_CASE("withdraw: after any byte and step of a push") {
  for (const Bulk bulk : {Bulk::kPush, Bulk::kMap, Bulk::kRead}) {
    for (const size_t piece : {kAll, size_t{13}}) {
      size_t budget = 0;
      while (withdraw_after(budget, piece, bulk)) budget += kStep;
      CHECK(budget > 500);
    }
  }
}

TEST_CASE("withdraw: before anything was sent, between chunks, and within one") {
  FakeLink link({tiny(Bulk::kPush)});
  const Sample sample{1, {}, {{Bytes(200, std::byte{7}), Owner::kCaller}}};
  constexpr size_t kAnnouncement = wire::kFrameHeaderSize + wire::kSegmentEntrySize;
  constexpr size_t kChunk = wire::kDataFramePrefixSize + 64;
  struct Case {
    size_t sent;
    size_t chunks;  // that leave in the end
  };
  for (const Case& c : std::vector<Case>{{0, 0},
                                         {kAnnouncement, 0},
                                         {kAnnouncement + 1, 1},
                                         {kAnnouncement + wire::kDataFramePrefixSize, 1},
                                         {kAnnouncement + kChunk - 1, 1},
                                         {kAnnouncement + kChunk, 1},
                                         {kAnnouncement + kChunk + 1, 2}}) {
    CAPTURE(c.sent);
    link.sent_by(link.a).clear();
    auto outgoing = link.a.post(sample);
    REQUIRE(outgoing.ok());
    for (size_t left = c.sent; left != 0;) left -= link.send(link.a, left);
    withdraw(link.a, *outgoing);
    link.settle();
    const auto frames = link.frames_from(link.a);
    REQUIRE(frames.size() == 2 + c.chunks);
    CHECK(frames.front().type == FrameType::kMessage);
    CHECK(count(frames, FrameType::kData) == c.chunks);
    CHECK(frames.back().type == FrameType::kAbort);
    CHECK(link.b.received.empty());
    check_idle(link.a);
    check_idle(link.b);
  }
}

TEST_CASE("withdraw: in the last chunk the peer gets the whole message, and no ABORT") {
  FakeLink link({tiny(Bulk::kPush)});
  const Sample sample{1, {}, {{Bytes(100, std::byte{7}), Owner::kCaller}}};
  auto outgoing = link.a.post(sample);
  REQUIRE(outgoing.ok());
  const size_t all =
      wire::kFrameHeaderSize + wire::kSegmentEntrySize + 2 * wire::kDataFramePrefixSize + 100;
  for (size_t left = all - 1; left != 0;) left -= link.send(link.a, left);
  REQUIRE((*outgoing)->borrowed());
  withdraw(link.a, *outgoing);
  link.settle();
  CHECK(count(link.frames_from(link.a), FrameType::kAbort) == 0);
  REQUIRE(link.b.received.size() == 1);
  CHECK(same(link.b.received[0], sample));
  check_idle(link.a);
}

TEST_CASE("withdraw: without memory for the rest of a chunk it can be tried again") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  FakeLink link({tiny(Bulk::kPush)});
  auto outgoing = link.a.post({1, {}, {{Bytes(200, std::byte{7}), Owner::kCaller}}});
  REQUIRE(outgoing.ok());
  size_t left = wire::kFrameHeaderSize + wire::kSegmentEntrySize + wire::kDataFramePrefixSize + 10;
  while (left != 0) left -= link.send(link.a, left);
  Failing failing(1);
  const bool done = has_memory_for([&] { link.a.sender.withdraw(*outgoing); });
  REQUIRE(failing.end());
  CHECK_FALSE(done);
  CHECK((*outgoing)->borrowed());
  withdraw(link.a, *outgoing);
  link.settle();
  CHECK(link.b.received.empty());
  check_idle(link.a);
  check_idle(link.b);
}

TEST_CASE("withdraw: whoever owns the event of a message is let go of by who takes what is spent") {
  FakeLink link({tiny(Bulk::kPush)});
  Sender& sender = link.a.sender;
  size_t live = 0;
  const Bytes bytes(200);
  OutSegment segment;
  segment.data = bytes.data();
  segment.size = bytes.size();
  Event event;
  Ref<Outgoing> outgoing =
      sender.submit(1, {}, {&segment, 1}, &event, make_ref<Held>(Bytes(1), live)).value();
  REQUIRE(outgoing);
  SUBCASE("sent") {
    outgoing = nullptr;
    while (sender.pending()) sender.sent(gathered(sender));
  }
  SUBCASE("withdrawn") {
    CHECK(sender.withdraw(outgoing));
    outgoing = nullptr;
  }
  SUBCASE("lost") {
    outgoing = nullptr;
    sender.drop();
  }
  CHECK(live == 1);
  (void)sender.take_spent();
  CHECK(live == 0);
}

TEST_CASE("withdraw: of a message that was sent, or twice, changes nothing") {
  FakeLink link({tiny(Bulk::kPush)});
  const Sample sample{1, {}, {{Bytes(100, std::byte{7}), Owner::kCaller}}};
  auto sent = link.a.post(sample);
  REQUIRE(sent.ok());
  link.settle();
  link.a.sender.withdraw(*sent);
  auto twice = link.a.post(sample);
  REQUIRE(twice.ok());
  withdraw(link.a, *twice);
  link.a.sender.withdraw(*twice);
  auto lost = link.a.post(sample);
  REQUIRE(lost.ok());
  link.settle();
  CHECK(count(link.frames_from(link.a), FrameType::kAbort) == 1);
  CHECK(link.b.received.size() == 2);
  auto dropped = link.a.post(sample);
  REQUIRE(dropped.ok());
  link.lose();
  link.a.sender.withdraw(*dropped);
  CHECK_FALSE(link.a.sender.pending());
}

TEST_CASE("withdraw: reads that are in flight keep their destination, and no others are offered") {
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  EndOptions options{tiny(Bulk::kRead)};
  SUBCASE("in the arena") {}
  SUBCASE("in the pool") { options.fetched_limit = 0; }
  FakeLink link(options, options, make_ref<Arena>(size_t{64} << 20, size_t{16} << 20), pool);
  const Sample sample{1,
                      {},
                      {{Bytes(40'000, std::byte{5}), Owner::kBlock},
                       {Bytes(300, std::byte{6}), Owner::kBlock},
                       {Bytes(200, std::byte{7}), Owner::kCaller}}};
  auto outgoing = link.a.post(sample);
  REQUIRE(outgoing.ok());
  CHECK(link.a.sender.leased_bytes() == 40'300);
  link.send(link.a, kAll, 1);  // all that is queued, and no chunk
  FakeLink::check(link.receive(link.b));
  link.b.start_reads();
  REQUIRE(link.b.reads.size() == 2);
  withdraw(link.a, *outgoing);
  CHECK(link.a.sender.leased_bytes() == 128);
  link.send(link.a);
  FakeLink::check(link.receive(link.b));
  CHECK_FALSE(link.b.receiver.midway());
  const auto landed = [&] { return pool->stats().used + link.b.fetched->in_arena(); };
  CHECK(landed() != 0);  // what a device still writes to is nobody else's
  FakeLink::check(link.b.finish_read(1));
  FakeLink::check(link.b.finish_read(0));
  CHECK(landed() == 0);
  link.settle();
  CHECK(count(link.frames_from(link.a), FrameType::kRts) == 2);
  CHECK(link.b.received.empty());
  check_idle(link.a);
}

TEST_CASE("withdraw: at random, among other messages") {
  const auto arena = make_ref<Arena>(size_t{64} << 20, size_t{16} << 20);
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    FakeLink link({tiny(static_cast<Bulk>(random.up_to(2)))}, {tiny(Bulk::kPush)}, arena, pool);
    std::vector<Sample> posted;
    std::set<size_t> withdrawn;
    std::vector<std::pair<size_t, Ref<Outgoing>>> open;
    for (int i = 0; i < 300; ++i) {
      if (random.chance(10)) {
        posted.push_back({1 + random.up_to(2), random.bytes(3), {}});
        for (uint64_t parts = random.up_to(5); parts != 0; --parts)
          posted.back().parts.push_back(
              {random.bytes(random.up_to(300)), static_cast<Owner>(random.up_to(3))});
        auto outgoing = link.a.post(posted.back());
        REQUIRE(outgoing.ok());
        if (*outgoing) open.emplace_back(posted.size() - 1, *outgoing);
      }
      if (!open.empty() && random.chance(10)) {
        const size_t at = random.up_to(open.size() - 1);
        if (open[at].second->borrowed()) withdrawn.insert(open[at].first);
        withdraw(link.a, open[at].second);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
      }
      link.stir(random, 100);
    }
    link.settle();
    check_idle(link.a);
    check_idle(link.b);
    // Each stream: what was posted, in order, without some that were withdrawn.
    for (uint64_t stream = 1; stream <= 3; ++stream) {
      size_t next = 0;
      const auto skip_dropped = [&](const Received* got) {
        while (next < posted.size() &&
               (posted[next].stream != stream ||
                (withdrawn.contains(next) && !(got && same(*got, posted[next])))))
          ++next;
      };
      for (const Received& got : link.b.received) {
        if (got.stream != stream) continue;
        skip_dropped(&got);
        REQUIRE(next < posted.size());
        REQUIRE(same(got, posted[next]));
        ++next;
      }
      skip_dropped(nullptr);
      REQUIRE(next == posted.size());
    }
    REQUIRE(count(link.frames_from(link.a), FrameType::kAbort) <= withdrawn.size());
    REQUIRE(link.b.received.size() ==
            posted.size() - count(link.frames_from(link.a), FrameType::kAbort));
  }
  CHECK(pool->stats().used == 0);
}

}  // namespace
}  // namespace tw::test
