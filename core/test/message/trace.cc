// SPDX-License-Identifier: Apache-2.0
// The frames that messages turn into, as AR-gRPC (HiPC'18) describes the protocol.
#include "test/message/fake_link.h"

namespace tw::test {
namespace {

using wire::FrameType;

Sample sample_of(const std::vector<size_t>& sizes, Owner owner, uint64_t seed = 1) {
  Random random(seed);
  Sample sample{1, random.bytes(5), {}};
  for (const size_t size : sizes) sample.parts.push_back({random.bytes(size), owner});
  return sample;
}

void post(End& end, const Sample& sample) { REQUIRE(end.post(sample).ok()); }

// Types in order, one letter each: M E D R F C A G.
std::string letters(const std::vector<Frame>& frames) {
  std::string out;
  for (const Frame& frame : frames) out += ".MEDRFCAG"[static_cast<size_t>(frame.type)];
  return out;
}

std::vector<uint64_t> lengths(const std::vector<Frame>& frames, FrameType type) {
  std::vector<uint64_t> out;
  for (const Frame& frame : frames)
    if (frame.type == type) out.push_back(frame.bytes);
  return out;
}

TEST_CASE("trace: 100 segments of 10 bytes are one send") {
  for (const Bulk bulk : {Bulk::kPush, Bulk::kMap, Bulk::kRead}) {
    CAPTURE(static_cast<int>(bulk));
    FakeLink link({usual(bulk)});
    Sample sample = sample_of({}, Owner::kCaller);
    for (int i = 0; i < 100; ++i)
      sample.parts.push_back({Bytes(10, static_cast<std::byte>(i)), Owner::kCaller});
    auto outgoing = link.a.post(sample);
    REQUIRE(outgoing.ok());
    CHECK_FALSE(*outgoing);  // the caller's memory is free at once

    std::array<iovec, 8> runs;
    CHECK(link.a.sender.gather(runs) == 1);
    link.settle();
    const auto frames = link.frames_from(link.a);
    REQUIRE(letters(frames) == "M");
    CHECK(frames[0].bytes == 100 * wire::kSegmentEntrySize + 5 + 100 * 10);
    CHECK(link.sent_by(link.b).empty());
    REQUIRE(link.b.received.size() == 1);
    CHECK(same(link.b.received[0], sample));
    CHECK(link.a.sender.counters().inline_segments == 100);
    CHECK(link.a.sender.counters().eager_frames == 0);
    CHECK(link.b.receiver.counters().inline_segments == 100);
  }
}

TEST_CASE("trace: 100 small segments after a large one are one eager send") {
  FakeLink link({usual(Bulk::kPush)});
  Sample sample = sample_of({20'000}, Owner::kHold);
  for (int i = 0; i < 100; ++i)
    sample.parts.push_back({Bytes(10, static_cast<std::byte>(i)), Owner::kCaller});
  post(link.a, sample);
  link.settle();
  const auto frames = link.frames_from(link.a);
  REQUIRE(letters(frames) == "MED");
  CHECK(frames[1].first_segment == 1);
  CHECK(frames[1].segments == 100);
  CHECK(frames[1].bytes == 1000);
  CHECK(same(link.b.received.at(0), sample));
}

TEST_CASE("trace: 10 MB in chunks of 4 MB are 3 ready-to-sends, 3 reads and 3 FINs") {
  constexpr size_t kMB = 1 << 20;
  Profile profile = usual(Bulk::kRead);
  const auto sample = sample_of({10 * kMB}, Owner::kBlock);

  SUBCASE("all in flight together") {
    FakeLink link({profile});
    post(link.a, sample);
    link.send(link.a);
    CHECK(letters(link.frames_from(link.a)) == "MRRR");
    FakeLink::check(link.receive(link.b));
    link.b.start_reads();
    REQUIRE(link.b.reads.size() == 3);
    // In any order.
    FakeLink::check(link.b.finish_read(1));
    FakeLink::check(link.b.finish_read(1));
    CHECK(link.b.received.empty());
    CHECK(link.b.receiver.counters().reads == 2);
    FakeLink::check(link.b.finish_read(0));
    REQUIRE(link.b.received.size() == 1);
    CHECK(same(link.b.received[0], sample));
    link.settle();
    CHECK(letters(link.frames_from(link.a)) == "MRRR");
    CHECK(letters(link.frames_from(link.b)) == "FFF");
    CHECK(lengths(link.frames_from(link.a), FrameType::kRts) ==
          std::vector<uint64_t>{4 * kMB, 4 * kMB, 2 * kMB});
    CHECK(link.a.fins == 3);
    CHECK(link.a.sender.counters().ready_to_sends == 3);
    CHECK(link.a.sender.counters().read_segments == 1);
    CHECK(link.b.receiver.counters().reads == 3);
    CHECK(link.b.receiver.counters().read_segments == 1);
    check_idle(link.a);
  }
  SUBCASE("no more in flight than the profile says") {
    profile.chunks_in_flight = 2;
    FakeLink link({profile});
    post(link.a, sample);
    link.send(link.a);
    CHECK(letters(link.frames_from(link.a)) == "MRR");
    CHECK(link.a.sender.leases() == 2);
    CHECK_FALSE(link.a.sender.pending());
    FakeLink::check(link.receive(link.b));
    link.b.start_reads();
    FakeLink::check(link.b.finish_read(1));
    link.send(link.b);
    FakeLink::check(link.receive(link.a));
    link.send(link.a);
    CHECK(letters(link.frames_from(link.a)) == "MRRR");
    CHECK(link.a.sender.leases() == 2);
    link.settle();
    CHECK(letters(link.frames_from(link.a)) == "MRRR");
    CHECK(letters(link.frames_from(link.b)) == "FFF");
    CHECK(same(link.b.received.at(0), sample));
    check_idle(link.a);
  }
}

TEST_CASE("trace: a mapped segment is a descriptor and one FIN, whatever its size") {
  FakeLink link({usual(Bulk::kMap)});
  const auto sample = sample_of({10 << 20}, Owner::kBlock);
  link.b.keep = true;
  post(link.a, sample);
  link.settle();
  CHECK(letters(link.frames_from(link.a)) == "M");
  CHECK(link.sent_by(link.a).size() ==
        wire::kFrameHeaderSize + wire::kSegmentEntrySize + wire::kDescriptorSize + 5);
  CHECK(link.sent_by(link.b).empty());
  REQUIRE(same(link.b.received.at(0), sample));
  CHECK(link.b.received[0].leased == 1);
  CHECK(link.a.sender.leases() == 1);
  CHECK(link.a.sender.leased_bytes() == 10 << 20);
  link.b.kept.clear();
  link.settle();
  CHECK(letters(link.frames_from(link.b)) == "F");
  check_idle(link.a);
}

TEST_CASE("trace: sizes around each threshold") {
  constexpr size_t kCoalesce = 8192, kEager = 16384, kChunk = 256 << 10;
  struct Case {
    std::vector<size_t> sizes;
    const char* push;
    const char* read;
    const char* map;
  };
  // The first group travels inside MESSAGE, later ones as EAGER, hence the leading 1.
  const std::vector<Case> cases = {
      {{0}, "M", "M", "M"},
      {{1, 0}, "M", "M", "M"},
      {{1, kCoalesce - 2}, "M", "M", "M"},
      {{1, kCoalesce - 1}, "M", "M", "M"},
      {{1, kCoalesce}, "ME", "ME", "ME"},
      {{1, kCoalesce + 1}, "ME", "ME", "ME"},
      {{kCoalesce, 0}, "M", "M", "M"},
      {{kCoalesce + 1, 0}, "M", "M", "M"},
      {{kEager - 1}, "M", "M", "M"},
      {{kEager}, "M", "M", "M"},
      {{kEager + 1}, "MD", "MR", "M"},
      {{1, kEager - 1}, "ME", "ME", "ME"},
      {{1, kEager}, "ME", "ME", "ME"},
      {{1, kEager + 1}, "MD", "MR", "M"},
      {{kEager + 1, 0}, "MD", "MR", "M"},
      {{kEager + 1, 1}, "MED", "MER", "ME"},
      {{kChunk - 1}, "MD", "MR", "M"},
      {{kChunk}, "MD", "MR", "M"},
      {{kChunk + 1}, "MDD", "MRR", "M"},
      {{2 * kChunk - 1}, "MDD", "MRR", "M"},
      {{2 * kChunk}, "MDD", "MRR", "M"},
      {{2 * kChunk + 1}, "MDDD", "MRRR", "M"},
      // small small LARGE small; small LARGE small LARGE; LARGE small LARGE small
      {{10, 20, kChunk, 30}, "MED", "MER", "ME"},
      {{10, kChunk, 30, kChunk}, "MEDD", "MERR", "ME"},
      {{kChunk, 30, kChunk, 40}, "MEEDD", "MEERR", "MEE"},
      {{kEager, kEager, kEager}, "MEE", "MEE", "MEE"},
  };
  for (const Case& c : cases) {
    for (const Bulk bulk : {Bulk::kPush, Bulk::kRead, Bulk::kMap}) {
      CAPTURE(&c - cases.data());
      CAPTURE(static_cast<int>(bulk));
      FakeLink link({Profile{"fake", bulk, kCoalesce, kEager, kChunk, 4}});
      const auto sample = sample_of(c.sizes, Owner::kBlock);
      post(link.a, sample);
      link.settle();
      CHECK(letters(link.frames_from(link.a)) == (bulk == Bulk::kPush   ? c.push
                                                  : bulk == Bulk::kRead ? c.read
                                                                        : c.map));
      REQUIRE(link.b.received.size() == 1);
      CHECK(same(link.b.received[0], sample));
      check_idle(link.a);
      check_idle(link.b);
    }
  }
}

TEST_CASE("trace: chunks are as long as the profile says, and the last takes the rest") {
  FakeLink link({tiny(Bulk::kPush)});
  post(link.a, sample_of({64, 65, 200}, Owner::kHold));
  link.settle();
  CHECK(lengths(link.frames_from(link.a), FrameType::kData) ==
        std::vector<uint64_t>{64, 64, 1, 64, 64, 64, 8});
  CHECK(link.a.sender.counters().pushed_chunks == 7);
  CHECK(link.b.receiver.counters().pushed_chunks == 7);
}

TEST_CASE("trace: a message without segments is one frame") {
  FakeLink link({tiny(Bulk::kPush)});
  const Sample sample{9, {}, {}};
  post(link.a, sample);
  link.settle();
  CHECK(link.sent_by(link.a).size() == wire::kFrameHeaderSize);
  CHECK(same(link.b.received.at(0), sample));
}

// Chunks of large messages take turns, and whatever is small passes between them.
TEST_CASE("trace: small messages of other streams pass between the chunks of a large one") {
  FakeLink link({tiny(Bulk::kPush)});
  Sample large = sample_of({640}, Owner::kHold);
  Sample other = sample_of({192}, Owner::kHold, 2);
  Sample small = sample_of({7}, Owner::kHold, 3);
  other.stream = 2;
  small.stream = 3;
  post(link.a, large);
  // The announcement, and one byte of the first chunk.
  const size_t announcement = wire::kFrameHeaderSize + wire::kSegmentEntrySize + 5;
  REQUIRE(link.send(link.a, announcement + 1) == announcement + 1);
  post(link.a, small);
  post(link.a, other);
  link.settle();
  const auto frames = link.frames_from(link.a);
  REQUIRE(letters(frames) == "MDMMDDDDDDDDDDDD");
  std::string order;
  for (const Frame& frame : frames)
    if (frame.type == FrameType::kData) order += static_cast<char>('0' + frame.message);
  CHECK(order == "1313131111111");
  REQUIRE(link.b.received.size() == 3);
  CHECK(same(link.b.received[0], small));
  CHECK(same(link.b.received[1], other));
  CHECK(same(link.b.received[2], large));
  // Each is handed up as soon as it is whole.
  CHECK(link.b.received[0].chunks == 1);
  CHECK(link.b.received[1].chunks == 6);
  CHECK(link.b.received[2].chunks == 13);
}

TEST_CASE("trace: a stream's order holds when a later message is whole first") {
  FakeLink link({tiny(Bulk::kPush)});
  const auto large = sample_of({640}, Owner::kHold);
  const auto small = sample_of({7}, Owner::kHold, 2);
  const auto medium = sample_of({7, 30}, Owner::kHold, 3);
  post(link.a, large);
  post(link.a, small);
  post(link.a, medium);
  link.settle();
  CHECK(letters(link.frames_from(link.a)) == "MMMEDDDDDDDDDD");
  REQUIRE(link.b.received.size() == 3);
  CHECK(same(link.b.received[0], large));
  CHECK(same(link.b.received[1], small));
  CHECK(same(link.b.received[2], medium));
}

TEST_CASE("trace: credit, GOAWAY and more FINs than one frame holds") {
  FakeLink link({usual(Bulk::kMap)});
  link.a.sender.credit(7, 1000);
  link.a.sender.credit(8, UINT64_MAX);
  link.a.sender.go_away(Code::kUnavailable, "shutting down");
  link.settle();
  CHECK(link.b.credits == std::vector<std::pair<uint64_t, uint64_t>>{{7, 1000}, {8, UINT64_MAX}});
  CHECK(link.b.away.code() == Code::kUnavailable);
  CHECK(link.b.away.details() == "shutting down");

  link.b.keep = true;
  const auto sample = sample_of({16'385}, Owner::kBlock);
  for (int i = 0; i < 1025; ++i) post(link.a, sample);
  link.settle();
  CHECK(link.a.sender.leases() == 1025);
  link.b.kept.clear();
  link.settle();
  const auto fins = lengths(link.frames_from(link.b), FrameType::kFin);
  CHECK(fins == std::vector<uint64_t>{8 * 1024, 8});
  check_idle(link.a);
}

// Bytes of payload that an end has noted with these steps.
uint64_t noted(const End& end, bool sent, std::initializer_list<TraceStep> steps) {
  const Trace::Record record = end.trace.record();
  uint64_t bytes = 0;
  for (const TraceStep step : steps) bytes += record.sums[sent][static_cast<size_t>(step)].bytes;
  return bytes;
}

TEST_CASE("trace: both ends note each byte of payload once, whatever carries it") {
  const auto payload = {TraceStep::kMessage, TraceStep::kMap, TraceStep::kEager, TraceStep::kData,
                        TraceStep::kRts};
  for (const Bulk bulk : {Bulk::kPush, Bulk::kRead, Bulk::kMap}) {
    CAPTURE(static_cast<int>(bulk));
    FakeLink link({usual(bulk)});
    for (End* end : {&link.a, &link.b}) end->trace.keep(100);
    post(link.a, sample_of({10, 20'000, 30, 40'000}, Owner::kBlock));
    link.settle();
    CHECK(noted(link.a, true, payload) == 60'040);
    CHECK(noted(link.b, false, payload) == 60'040);
    if (bulk != Bulk::kMap) continue;
    std::vector<TraceEvent> maps;
    for (const TraceEvent& event : link.b.trace.record().events)
      if (event.step == TraceStep::kMap) maps.push_back(event);
    REQUIRE(maps.size() == 2);
    CHECK(maps[0].segment == 1);
    CHECK(maps[1].segment == 3);
    CHECK(maps[1].bytes == 40'000);
    CHECK(maps[0].id != maps[1].id);
    for (const TraceEvent& map : maps) CHECK(map.message == 1);
  }
}

TEST_CASE("trace: a message that waits to be announced is noted at its turn") {
  const auto announced = {TraceStep::kMessage, TraceStep::kMap, TraceStep::kEager};
  FakeLink link({tiny(Bulk::kMap)});
  link.log = false;
  link.a.shares = false;  // these are pushed
  for (size_t i = 0; i < wire::kMaxOpenMessages; ++i)
    REQUIRE(link.a.post({1 + i, {}, {{Bytes(40), Owner::kHold}}}).ok());
  link.a.shares = true;
  for (End* end : {&link.a, &link.b}) end->trace.keep(10);
  post(link.a, {1,
                {},
                {{Bytes(3), Owner::kCaller},
                 {Bytes(50), Owner::kBlock},
                 {Bytes(5), Owner::kCaller},
                 {Bytes(40), Owner::kHold}}});
  REQUIRE(link.a.sender.parked() == 1);
  CHECK(noted(link.a, true, announced) == 0);
  link.settle();
  REQUIRE(link.a.sender.parked() == 0);
  CHECK(noted(link.a, true, announced) == 58);
  CHECK(noted(link.b, false, announced) == 58);
  const Trace::Record record = link.a.trace.record();
  CHECK(record.sums[1][static_cast<size_t>(TraceStep::kMessage)].count == 1);
}

TEST_CASE("trace: what the wire cannot carry is refused at the sender and leaves nothing behind") {
  EndOptions options{usual(Bulk::kMap)};
  options.limits.max_message_bytes = 100'000;
  options.limits.max_segments = 3;
  options.limits.max_header_bytes = 10;
  FakeLink link(options);
  auto refused = link.a.post(sample_of({60'000, 40'001}, Owner::kBlock));
  CHECK(refused.status().code() == Code::kResourceExhausted);
  refused = link.a.post(sample_of({1, 1, 1, 1}, Owner::kCaller));
  CHECK(refused.status().code() == Code::kInvalidArgument);
  Sample long_header = sample_of({1}, Owner::kCaller);
  long_header.header.resize(11);
  refused = link.a.post(long_header);
  CHECK(refused.status().code() == Code::kResourceExhausted);
  check_idle(link.a);
  CHECK(link.a.sender.counters().messages == 0);
  // The next one is whole.
  const auto good = sample_of({60'000, 40'000}, Owner::kBlock);
  post(link.a, good);
  link.settle();
  REQUIRE(link.b.received.size() == 1);
  CHECK(same(link.b.received[0], good));
}

}  // namespace
}  // namespace tw::test
