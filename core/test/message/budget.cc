// SPDX-License-Identifier: Apache-2.0
// What a peer makes a receiver hold: at most twice what it has really sent, and a little more.
#include <algorithm>
#include <functional>

#include "access/initiator.h"
#include "access/target.h"
#include "memory/huge_pages.h"
#include "test/message/fake_link.h"
#include "test/message/forge.h"
#include "test/not_tried.h"
#include "test/shortage.h"

namespace tw::test {
namespace {

using wire::SegmentInfo;
using wire::SegmentKind;

constexpr size_t kSlack = (1 << 20) + kHugePage;  // and the first huge page of one segment

// A receiver whose user takes nothing, and who counts what it holds for that: memory of the heap,
// and address space of the pool.
class Hoard final : public Receiver::Sink {
 public:
  explicit Hoard(size_t pool_bytes = size_t{1} << 30)
      : pool(make_ref<Pool>(pool_bytes)),
        fetched(make_ref<ReceiveMemory>(make_ref<Arena>(0), pool, 0)),
        before_(live_bytes()),
        receiver_(std::make_unique<Receiver>(*pool, *fetched, UINT64_MAX, *this)) {}

  // False: the peer has been thrown out.
  bool hear(std::span<const std::byte> bytes) {
    for (size_t at = 0; at < bytes.size();) {
      std::array<iovec, 2> room;
      const size_t runs = receiver_->buffers(room);
      size_t moved = 0;
      for (size_t i = 0; i < runs; ++i) {
        const size_t length = std::min(room[i].iov_len, bytes.size() - at);
        std::memcpy(room[i].iov_base, bytes.data() + at, length);
        at += length;
        moved += length;
      }
      came += moved;
      if (!receiver_->received(moved).ok()) return false;
    }
    return true;
  }
  size_t held() const { return live_bytes() - before_ + pool->stats().used; }
  void check(const std::string& what) const {
    INFO(what << ": " << held() << " bytes are held for " << came);
    CHECK(held() <= 2 * came + kSlack);
  }
  Receiver& receiver() { return *receiver_; }

  Status on_message(Ref<Parcel> parcel) override {
    refused += !parcel->ok();
    messages.push(std::move(parcel));
    return {};
  }
  Result<Receiver::Cost> on_wait(uint64_t, std::span<const std::byte>, uint64_t,
                                 const Receiver::Cost&) override {
    return Receiver::Cost{};
  }
  Status on_fin(std::span<const uint64_t>) override { return {}; }
  Status on_unmappable(uint64_t) override { return {}; }
  Status on_credit(uint64_t, uint64_t) override { return {}; }
  void on_go_away(Code, std::string_view) override {}
  Result<InSegment> on_map(const SegmentInfo&) override { return InSegment{}; }
  Result<InSegment> on_return(const SegmentInfo&) override { return InSegment{}; }
  Status on_region(const wire::Region& region) override { return initiator.on_region(region); }
  Status on_region_gone(uint64_t region) override { return initiator.on_region_gone(region); }
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here) override {
    return target.on_operation(operation, here);
  }
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override {
    return initiator.on_outcome(outcome, here);
  }
  Status on_placed(wire::FrameType type) override {
    if (type == wire::FrameType::kOutcome) return initiator.outcome_arrived();
    target.operation_arrived();
    return {};
  }

  const Ref<Pool> pool;
  const Ref<ReceiveMemory> fetched;
  FrameQueue out;  // of one-sided operations, and nobody takes them
  Target target{out};
  Initiator initiator{out, 4 << 20, false};
  ParcelQueue messages;
  size_t came = 0, refused = 0;

 private:
  const size_t before_;
  std::unique_ptr<Receiver> receiver_;
};

Bytes announced(uint64_t number, SegmentKind kind, uint64_t length, size_t segments = 1,
                uint64_t stream = 0) {
  const std::vector<SegmentInfo> list(segments, {length, kind, {}});
  return message(stream ? stream : number, number, list, Bytes(16),
                 Bytes(kind == SegmentKind::kInline ? length * segments : 0));
}

// The beginning of a DATA frame of `bytes`.
Bytes data_head(uint64_t number, uint32_t segment, uint64_t offset, uint32_t bytes, size_t here) {
  Bytes out(wire::kDataFramePrefixSize + here);
  wire::encode_data_prefix(out.data(), number, number, segment, offset, bytes);
  return out;
}

TEST_CASE("budget: announcing the largest messages takes no memory") {
  Hoard hoard;
  uint64_t number = 1;
  for (const SegmentKind kind : {SegmentKind::kPush, SegmentKind::kRead, SegmentKind::kEager})
    for (int i = 0; i < 600; ++i)
      REQUIRE(hoard.hear(
          announced(number++, kind, kind == SegmentKind::kEager ? 4 << 20 : uint64_t{16} << 30)));
  hoard.check("announcements");
  // Nor do the heads of frames.
  REQUIRE(hoard.hear(data_head(1, 0, 0, 64 << 20, 100)));
  hoard.check("a chunk that has begun");
}

TEST_CASE("budget: messages of many small segments") {
  for (const uint64_t length : {0, 1, 5, 9, 17, 40}) {
    CAPTURE(length);
    Hoard hoard;
    for (uint64_t number = 1; number <= 3; ++number)
      REQUIRE(hoard.hear(announced(number, SegmentKind::kInline, length, 65'535)));
    hoard.check("inline");
    for (uint64_t number = 4; number <= 6; ++number) {
      REQUIRE(hoard.hear(announced(number, SegmentKind::kEager, length, 65'535)));
      if (number == 6) hoard.check("eager, announced");
      if (length == 0) continue;
      for (uint32_t first = 0; first < 65'535; first += 4369)
        REQUIRE(
            hoard.hear(eager(number, number, first, 4369, static_cast<uint32_t>(4369 * length))));
    }
    hoard.check("eager");
    if (length == 0) continue;
    REQUIRE(hoard.hear(announced(7, SegmentKind::kPush, length, 65'535)));
    hoard.check("pushed, announced");
    for (uint32_t i = 0; i < 65'535; ++i)
      REQUIRE(hoard.hear(data(7, 7, i, 0, static_cast<uint32_t>(length))));
    hoard.check("pushed");
    REQUIRE(hoard.hear(announced(8, SegmentKind::kRead, length, 65'535)));
    hoard.check("to be read");
  }
}

TEST_CASE("budget: small messages that nobody takes") {
  for (const size_t segments : {0, 1, 2}) {
    CAPTURE(segments);
    Hoard hoard;
    for (uint64_t number = 1; number <= 20'000; ++number)
      REQUIRE(hoard.hear(announced(number, SegmentKind::kInline, 1, segments)));
    hoard.check("unread");
  }
}

TEST_CASE("budget: as many unfinished messages as there may be, and what waits behind them") {
  Hoard hoard;
  uint64_t number = 1;
  while (hoard.hear(announced(number, SegmentKind::kPush, 100'000)))
    if (++number > 100'000) break;
  CHECK(number == 2 * wire::kMaxOpenMessages + 1);
  hoard.check("unfinished");
}

TEST_CASE("budget: messages behind an unfinished one") {
  for (const size_t segments : {0, 1}) {
    Hoard hoard;
    REQUIRE(hoard.hear(announced(1, SegmentKind::kPush, 1)));
    for (uint64_t number = 2; number <= 20'000; ++number)
      REQUIRE(hoard.hear(announced(number, SegmentKind::kInline, 1, segments, 1)));
    hoard.check("waiting");
    REQUIRE(hoard.messages.empty());
    REQUIRE(hoard.hear(data(1, 1, 0, 0, 1)));
    hoard.check("unread");
  }
}

TEST_CASE("budget: a pushed segment grows with what has come, and is whole in the end") {
  const uint64_t size = 48 << 20;
  Bytes all(size);
  for (size_t i = 0; i < size; ++i) all[i] = static_cast<std::byte>(i % 251);
  Hoard hoard;
  REQUIRE(hoard.hear(announced(1, SegmentKind::kPush, size)));
  uint64_t offset = 0;
  for (const uint32_t chunk : {1u, 100u, 2000u, 70'000u, 3u << 20, 9u << 20}) {
    REQUIRE(hoard.hear(data_head(1, 0, offset, chunk, 0)));
    hoard.check("a chunk that has begun");
    for (size_t at = 0; at < chunk; at += 1 << 20) {
      REQUIRE(
          hoard.hear(std::span(all).subspan(offset + at, std::min<size_t>(chunk - at, 1 << 20))));
      hoard.check("a chunk under way");
    }
    offset += chunk;
  }
  REQUIRE(hoard.hear(data_head(1, 0, offset, static_cast<uint32_t>(size - offset), 0)));
  REQUIRE(hoard.hear(std::span(all).subspan(offset)));
  REQUIRE_FALSE(hoard.messages.empty());
  const InMessage whole = Parcel::open(hoard.messages.pop());
  REQUIRE(whole.segments.size() == 1);
  CHECK(std::memcmp(whole.segments[0].data, all.data(), size) == 0);
}

TEST_CASE("budget: one segment at a time has its first huge page whole") {
  Hoard hoard;
  for (uint64_t number = 1; number <= 100; ++number) {
    REQUIRE(hoard.hear(announced(number, SegmentKind::kPush, 8 << 20)));
    for (uint64_t byte = 0; byte < 3; ++byte) REQUIRE(hoard.hear(data(number, number, 0, byte, 1)));
    hoard.check("segments that have begun");
  }
  CHECK(hoard.pool->stats().used >= kHugePage);
  // Whoever has had its huge page filled leaves it to the next one.
  REQUIRE(hoard.hear(data(1, 1, 0, 3, kHugePage)));
  REQUIRE(hoard.hear(data(1, 1, 0, kHugePage + 3, 1)));
  const size_t used = hoard.pool->stats().used;
  REQUIRE(hoard.hear(announced(101, SegmentKind::kPush, 8 << 20)));
  REQUIRE(hoard.hear(data(101, 101, 0, 0, 1)));
  CHECK(hoard.pool->stats().used == used + kHugePage);
}

TEST_CASE("budget: recycled memory serves a message at once, but not more than half of it a link") {
  Hoard hoard(64 << 20);
  {
    std::vector<Ref<PoolBuffer>> used;
    for (int i = 0; i < 8; ++i) used.push_back(hoard.pool->get(8 << 20).value());
  }
  REQUIRE(hoard.pool->stats().idle == 64 << 20);
  for (uint64_t number = 1; number <= 8; ++number) {
    REQUIRE(hoard.hear(announced(number, SegmentKind::kPush, 8 << 20)));
    REQUIRE(hoard.hear(data(number, number, 0, 0, 10)));
  }
  CHECK(hoard.pool->stats().idle == 32 << 20);
  CHECK(hoard.pool->stats().recycled == 4);
  REQUIRE(hoard.hear(data(1, 1, 0, 10, (8 << 20) - 10)));
  REQUIRE(hoard.hear(announced(9, SegmentKind::kPush, 8 << 20)));
  REQUIRE(hoard.hear(data(9, 9, 0, 0, 10)));
  CHECK(hoard.pool->stats().recycled == 5);
  for (uint64_t number = 2; number <= 9; ++number) REQUIRE(hoard.hear(abort(number, number)));
  hoard.messages.pop();
  CHECK(hoard.pool->stats().used == 0);
}

TEST_CASE("budget: posted memory counts as recycled memory does, and comes home") {
  constexpr size_t kSize = 8 << 20;
  Hoard hoard(32 << 20);
  std::array<Bytes, 3> memory;
  for (Bytes& each : memory) {
    each.resize(kSize);
    hoard.pool->post(make_ref<PostedBuffer>(each.data(), kSize, nullptr));
  }
  // Two of them are half of the pool's bytes.
  for (uint64_t number = 1; number <= 3; ++number) {
    REQUIRE(hoard.hear(announced(number, SegmentKind::kPush, kSize)));
    REQUIRE(hoard.hear(data(number, number, 0, 0, 10)));
  }
  CHECK(hoard.pool->stats().posted == kSize);
  CHECK(hoard.pool->stats().used < kSize);
  // A message that is given up lets go of its memory.
  REQUIRE(hoard.hear(abort(1, 1)));
  REQUIRE(hoard.hear(abort(3, 3)));
  CHECK(hoard.pool->stats().used == 0);
  REQUIRE(hoard.hear(data_head(2, 0, 10, kSize - 10, 0)));
  Bytes rest(kSize - 10, std::byte{9});
  REQUIRE(hoard.hear(rest));
  REQUIRE_FALSE(hoard.messages.empty());
  const InMessage whole = Parcel::open(hoard.messages.pop());
  CHECK(whole.segments[0].data == memory[1].data());
  CHECK(std::memcmp(memory[1].data() + 10, rest.data(), rest.size()) == 0);
  // There is room for another one.
  REQUIRE(hoard.hear(announced(4, SegmentKind::kPush, kSize)));
  REQUIRE(hoard.hear(data(4, 4, 0, 0, 10)));
  CHECK(hoard.pool->stats().posted == 0);
}

TEST_CASE("budget: what is to be read takes a bounded part of the address space at a time") {
  Hoard hoard;
  constexpr uint64_t kSize = uint64_t{600} << 20;
  for (uint64_t number = 1; number <= 5; ++number) {
    REQUIRE(hoard.hear(announced(number, SegmentKind::kRead, kSize)));
    REQUIRE(hoard.hear(rts(number, number, 0, 0, 1000)));
    REQUIRE(hoard.hear(rts(number, number, 0, 1000, 1000)));
  }
  REQUIRE(hoard.hear(announced(6, SegmentKind::kRead, 100)));
  REQUIRE(hoard.hear(rts(6, 6, 0, 0, 100)));
  auto reads = hoard.receiver().take_reads();
  REQUIRE(reads.size() == 2);
  CHECK(reads[1].destination == reads[0].destination + 1000);
  CHECK(hoard.pool->stats().used == Pool::class_size(Pool::class_of(kSize)));
  // The others wait for it, in their order, however it ends.
  for (const auto& read : reads) REQUIRE(hoard.receiver().read_done(read).ok());
  REQUIRE_FALSE(hoard.receiver().offered_reads());
  REQUIRE(hoard.hear(abort(2, 2)));
  REQUIRE(hoard.hear(abort(1, 1)));
  reads = hoard.receiver().take_reads();
  REQUIRE(reads.size() == 4);
  for (const auto& read : reads) {
    CHECK((read.destination != nullptr) == (read.message == 3));
    REQUIRE(hoard.receiver().read_done(read).ok());
  }
  hoard.receiver().refuse(3, {Code::kResourceExhausted, "no room"});
  reads = hoard.receiver().take_reads();
  REQUIRE(reads.size() == 2);
  CHECK(reads[0].message == 4);
  REQUIRE(hoard.hear(abort(4, 4)));
  REQUIRE(hoard.hear(abort(5, 5)));
  reads = hoard.receiver().take_reads();
  REQUIRE(reads.size() == 3);
  CHECK(reads[2].message == 6);
  REQUIRE(hoard.receiver().read_done(reads[2]).ok());
  CHECK_FALSE(hoard.messages.empty());
}

TEST_CASE("budget: offers that wait for room go on when a message is refused") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  Hoard hoard;
  constexpr uint64_t kSize = uint64_t{600} << 20;
  REQUIRE(hoard.hear(
      message(1, 1, {{kSize, SegmentKind::kRead, {}}, {500, SegmentKind::kPush, {}}}, {}, {})));
  REQUIRE(hoard.hear(announced(2, SegmentKind::kRead, kSize)));
  for (uint64_t number = 1; number <= 2; ++number)
    REQUIRE(hoard.hear(rts(number, number, 0, 0, 1000)));
  REQUIRE(hoard.receiver().take_reads().size() == 1);
  const Bytes chunk = data(1, 1, 1, 0, 500);
  Failing failing(1);
  const bool heard = hoard.hear(chunk);
  REQUIRE(failing.end());
  REQUIRE(heard);
  REQUIRE(hoard.receiver().counters().refused == 1);
  const auto reads = hoard.receiver().take_reads();
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].message == 2);
  CHECK(reads[0].destination);
}

TEST_CASE("budget: a message without memory costs its stream what was announced") {
  if (!kFailsOnDemand)
    return not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  Hoard hoard;
  REQUIRE(hoard.hear(announced(1, SegmentKind::kInline, 100)));
  hoard.messages.pop();
  const Bytes frame = announced(2, SegmentKind::kInline, 100);
  Failing failing(1);
  const bool heard = hoard.hear(frame);
  REQUIRE(failing.end());
  REQUIRE(heard);
  const Ref<Parcel> parcel = hoard.messages.pop();
  CHECK_FALSE(parcel->ok());
  CHECK(parcel->payload_bytes() == 100);
}

TEST_CASE("budget: headers and frames of the largest size") {
  Hoard hoard;
  for (uint64_t number = 1; number <= 5; ++number)
    REQUIRE(hoard.hear(message(number, number, {}, Bytes(1 << 20), {})));
  hoard.check("headers");
  Bytes frame = announced(6, SegmentKind::kInline, 4'000'000);
  frame.resize(100);
  REQUIRE(hoard.hear(frame));
  hoard.check("a frame that has begun");
  REQUIRE(hoard.hear(Bytes(1'000'000)));
  hoard.check("a frame under way");
}

TEST_CASE("budget: messages that are given up leave nothing") {
  Hoard hoard;
  for (uint64_t number = 1; number <= 50'000; ++number) {
    REQUIRE(hoard.hear(announced(number, SegmentKind::kPush, 100'000, 10)));
    REQUIRE(hoard.hear(abort(number, number)));
  }
  CHECK(hoard.held() <= kSlack);
}

TEST_CASE("budget: as many offers to read as there may be") {
  constexpr size_t kOffers = 262'144;
  Hoard hoard;
  // As the link keeps them until the transport has room.
  std::deque<Receiver::Read> waiting;
  size_t offers = 0;
  const auto offer = [&](uint64_t number) {
    if (!hoard.hear(rts(number, number, 0, offers % 1000, 1))) return false;
    ++offers;
    for (Receiver::Read& read : hoard.receiver().take_reads()) waiting.push_back(std::move(read));
    return true;
  };
  uint64_t number = 0;
  do {
    if (offers % 1000 == 0) REQUIRE(hoard.hear(announced(++number, SegmentKind::kRead, 1000)));
  } while (offer(number));
  CHECK(offers == kOffers);
  hoard.check("offers");
}

Bytes region(uint64_t id) {
  Bytes out(wire::kRegionFrameSize);
  wire::encode_region(out.data(), {id, 4096, 0, 0, wire::kRegionRights});
  return out;
}

TEST_CASE("budget: as many regions as there may be") {
  Hoard hoard;
  uint64_t id = 0;
  while (hoard.hear(region(++id)))
    if (id > 100'000) break;
  CHECK(id == wire::kMaxRegions + 1);
  hoard.check("regions");
}

TEST_CASE("budget: regions that are taken back leave nothing") {
  Hoard hoard;
  for (uint64_t id = 1; id <= 100'000; ++id) {
    REQUIRE(hoard.hear(region(id)));
    Bytes gone(wire::kRegionGoneFrameSize);
    wire::encode_region_gone(gone.data(), id);
    REQUIRE(hoard.hear(gone));
  }
  CHECK(hoard.held() <= kSlack);
}

Bytes access(const wire::OperationFrame& operation) {
  Bytes out(wire::kOperationFramePrefixSize);
  wire::encode_operation_prefix(out.data(), operation);
  return out;
}

TEST_CASE("budget: operations whose outcomes nobody takes") {
  for (const uint64_t region : {1, 999}) {
    CAPTURE(region);
    Hoard hoard;
    Bytes memory(4096);
    hoard.target.expose(make_ref<Grant>(wire::Region{1, memory.size(), 0, 0, wire::kRegionRights},
                                        memory.data(), nullptr));
    uint64_t id = 0;
    while (hoard.hear(access({++id, region, 0, 4096, 0, 0, wire::OperationKind::kRead, 0})))
      if (id > 10'000) break;
    CHECK(id == wire::kMaxOperations + 1);
    hoard.check("outcomes");
  }
}

TEST_CASE("budget: values that nobody takes, of writes with immediate") {
  Hoard hoard;
  Bytes memory(8);
  hoard.target.expose(make_ref<Grant>(wire::Region{1, memory.size(), 0, 0, wire::kRegionRights},
                                      memory.data(), nullptr));
  for (uint64_t id = 1; id <= 2 * Target::kMaxImmediates; ++id) {
    REQUIRE(hoard.hear(access({id, 1, 0, 0, 0, 0, wire::OperationKind::kWriteImmediate, 7})));
    hoard.out.drop();  // the outcome is taken
  }
  CHECK(hoard.target.immediates() == Target::kMaxImmediates);
  hoard.check("values");
}

TEST_CASE("budget: outcomes of nothing end the link") {
  Hoard hoard;
  Bytes outcome(wire::kOutcomeFramePrefixSize);
  wire::encode_outcome_prefix(outcome.data(), {1, Code::kOk, 0});
  CHECK_FALSE(hoard.hear(outcome));
}

TEST_CASE("budget: a sender keeps to what its peer holds for it, in the order of each stream") {
  for (const Bulk bulk : {Bulk::kPush, Bulk::kRead}) {
    CAPTURE(static_cast<int>(bulk));
    FakeLink link({tiny(bulk)});
    link.log = false;
    constexpr size_t kMessages = 3 * wire::kMaxOpenMessages;
    const auto sample = [&](size_t i, size_t size) {
      Bytes bytes(size, static_cast<std::byte>(i));
      std::memcpy(bytes.data(), &i, sizeof i);
      return Sample{
          1 + i % 1500, Bytes(3), {{std::move(bytes), i % 2 ? Owner::kBlock : Owner::kCaller}}};
    };
    Ref<Outgoing> given_up;
    for (size_t i = 0; i < kMessages; ++i) {
      auto outgoing = link.a.post(sample(i, 40));
      REQUIRE(outgoing.ok());
      if (i == kMessages - 2) given_up = *outgoing;
      // Small ones stay behind what waits on their stream, and pass all others.
      REQUIRE(link.a.post(sample(i, 8)).ok());
    }
    REQUIRE(link.a.post({9000, {}, {{Bytes(5), Owner::kCaller}}}).ok());
    CHECK(link.a.sender.parked() >= kMessages / 2);
    REQUIRE(given_up);
    CHECK(link.a.sender.withdraw(given_up));
    link.a.reclaim();
    link.settle();
    REQUIRE(link.b.received.size() == 2 * kMessages);
    CHECK(link.a.sender.parked() == 0);
    std::map<uint64_t, std::pair<size_t, size_t>> last;  // by stream: number and size
    for (const Received& got : link.b.received) {
      if (got.stream == 9000) continue;
      size_t i;
      std::memcpy(&i, got.segments.at(0).data(), sizeof i);
      const std::pair now(i, 40 - got.segments[0].size());
      REQUIRE(got.stream == 1 + i % 1500);
      if (last.contains(got.stream)) CHECK(last[got.stream] < now);
      last[got.stream] = now;
    }
    check_idle(link.a);
  }
}

TEST_CASE("budget: a sender has no more on lease than its peer holds for it") {
  FakeLink link({tiny(Bulk::kMap)}, {tiny(Bulk::kMap)},
                make_ref<Arena>(size_t{256} << 20, size_t{64} << 20));
  link.log = false;
  link.b.keep = true;
  const auto post = [&](size_t messages, size_t segments) {
    const std::vector<Part> parts(segments, {Bytes(40, std::byte{5}), Owner::kBlock});
    for (size_t i = 0; i < messages; ++i) REQUIRE(link.a.post({1, {}, parts}).ok());
    link.settle();
  };
  post(1000, 4);
  post(1, 200);  // some of these
  CHECK(link.a.sender.leases() == wire::kMaxLeases);
  CHECK(link.a.sender.counters().crowded_segments == 4000 + 200 - wire::kMaxLeases);
  REQUIRE(link.b.received.size() == 1001);
  CHECK(link.b.received.back().leased == wire::kMaxLeases - 4000);
  for (const Bytes& got : link.b.received.back().segments) CHECK(got == Bytes(40, std::byte{5}));
  link.b.kept.clear();
  link.settle();
  post(1, 1);
  CHECK(link.b.received.back().leased == 1);
}

TEST_CASE("budget: what waits to be announced is let go of with its link") {
  FakeLink link({tiny(Bulk::kMap)});
  link.log = false;
  link.a.shares = false;
  for (size_t i = 0; i < wire::kMaxOpenMessages; ++i)
    REQUIRE(link.a.post({1 + i, {}, {{Bytes(40), Owner::kHold}}}).ok());
  link.a.shares = true;
  // On a stream that waits, with a lease beside what is pushed.
  REQUIRE(link.a.post({1, {}, {{Bytes(40), Owner::kBlock}}}).ok());
  auto mixed = link.a.post({2, {}, {{Bytes(40), Owner::kBlock}, {Bytes(40), Owner::kCaller}}});
  REQUIRE(mixed.ok());
  REQUIRE(link.a.post({2, {}, {{Bytes(40), Owner::kBlock}, {Bytes(40), Owner::kHold}}}).ok());
  CHECK(link.a.sender.leases() == 3);
  CHECK(link.a.sender.parked() == 2);
  const uint64_t unheard[] = {2};  // a peer can guess the name of a lease
  check_says(link.a.sender.on_fin(unheard), Code::kInternal, {"FIN", "id is 2"});
  check_says(link.a.sender.on_unmappable(3), Code::kInternal, {"UNMAPPABLE", "lease is 3"});
  CHECK(link.a.sender.withdraw(*mixed));
  CHECK(link.a.sender.leases() == 2);
  link.a.reclaim();
  SUBCASE("sent in the end") { link.settle(); }
  SUBCASE("lost") { link.lose(); }
  CHECK(link.a.held == 0);
  CHECK(link.a.sender.parked() == 0);
  CHECK(link.a.sender.leases() == 0);
  CHECK(link.a.unfinished.empty());
}

}  // namespace
}  // namespace tw::test
