// SPDX-License-Identifier: Apache-2.0
// What a peer has on lease and sends back: it goes by name, and stays for whoever receives it.
#include "test/message/fake_link.h"
#include "test/message/forge.h"

namespace tw::test {
namespace {

using wire::SegmentKind;

constexpr size_t kSize = 4 * wire::kLeastReturned;

EndOptions mapping() {
  EndOptions options;
  options.profile = tiny(Bulk::kMap);
  return options;
}

// `bytes` of b's view number `at`, to be sent by b.
OutSegment back(End& b, size_t at, size_t offset, size_t bytes) {
  const InSegment& got = b.kept.at(at).segments.at(0);
  OutSegment segment;
  segment.data = got.data + offset;
  segment.size = bytes;
  segment.view = b.peer_memory->held({segment.data, bytes});
  segment.hold = segment.view;
  return segment;
}

// Two ends, the second of which has one segment of the first one's on lease.
struct Lending {
  explicit Lending(const EndOptions& options = mapping()) : link(options) {
    link.a.keep = link.b.keep = true;
    Random random(1);
    bytes = random.bytes(kSize);
    REQUIRE(link.a.post({1, {}, {{bytes, Owner::kBlock}}}).ok());
    link.settle();
    REQUIRE(link.b.kept.size() == 1);
  }
  Bytes part(size_t offset, size_t size) const {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    return {from, from + static_cast<std::ptrdiff_t>(size)};
  }
  FakeLink link;
  Bytes bytes;
};

TEST_CASE("returned: the owner gets its bytes back without a copy, and keeps them") {
  Lending lending;
  FakeLink& link = lending.link;
  End &a = link.a, &b = link.b;
  {
    std::array<OutSegment, 1> segments{back(b, 0, 100, kSize - 200)};
    REQUIRE(segments[0].view);
    REQUIRE(b.sender.submit(1, {}, segments).ok());
  }
  // Its lease ends after it has been announced, and before anybody reads it.
  b.kept.clear();
  link.settle();
  CHECK(b.sender.counters().returned_segments == 1);
  CHECK(b.sender.counters().pushed_segments == 0);
  CHECK(a.receiver.counters().returned_segments == 1);
  CHECK(a.sender.leases() == 0);
  REQUIRE(a.received.size() == 1);
  CHECK(a.received[0].segments.at(0) == lending.part(100, kSize - 200));
  // The block is not free as long as it is viewed, and what is written to the view is not in it.
  CHECK(a.arena->stats().blocks == 1);
  InSegment& got = a.kept.at(0).segments.at(0);
  REQUIRE(got.view());
  got.view()->expose();
  const_cast<std::byte*>(got.data)[0] ^= std::byte{255};
  const Ref<Slab> slab = a.slabs.begin()->second;
  CHECK(std::equal(lending.bytes.begin(), lending.bytes.end(), slab->base()));
  a.kept.clear();
  CHECK(a.arena->stats().blocks == 0);
}

TEST_CASE("returned: a message that waits for its turn keeps its leases") {
  Lending lending;
  FakeLink& link = lending.link;
  End &a = link.a, &b = link.b;
  // As many open messages as may be, and one more on whose stream the returned one waits, too.
  const Sample pushed{2, {}, {{Bytes(200), Owner::kHold}}};
  for (size_t i = 0; i <= wire::kMaxOpenMessages; ++i) REQUIRE(b.post(pushed).ok());
  REQUIRE(b.sender.parked() == 1);
  {
    std::array<OutSegment, 1> segments{back(b, 0, 0, kSize)};
    REQUIRE(b.sender.submit(2, {}, segments).ok());
  }
  REQUIRE(b.sender.parked() == 2);
  b.kept.clear();
  SUBCASE("until it is announced") {
    b.return_leases();
    link.settle();
    REQUIRE(a.received.size() == wire::kMaxOpenMessages + 2);
    CHECK(a.received.back().segments.at(0) == lending.bytes);
    CHECK(a.sender.leases() == 0);
  }
  SUBCASE("until the link is lost") {
    CHECK(b.returns->ids.empty());
    link.lose();
    CHECK(b.returns->ids.size() == 1);
  }
}

TEST_CASE("returned: what a peer may not name ends the link") {
  Lending lending;
  FakeLink& link = lending.link;
  const InSegment& lent = link.b.kept.at(0).segments.at(0);
  const RegionRef good = lent.view()->region({lent.data, lent.size});
  const uint64_t lease = lent.view()->id();
  struct Case {
    wire::SegmentInfo info;
    std::string_view words;
  };
  const auto named = [&](uint32_t slab, uint32_t generation, uint64_t offset, uint64_t id,
                         uint64_t length = kSize) {
    return wire::SegmentInfo{length, SegmentKind::kReturn, {slab, generation, offset, id}};
  };
  const std::vector<Case> cases = {
      {named(good.slab, good.generation, good.offset, lease + 1), "which is not out"},
      {named(good.slab + 1, good.generation, good.offset, lease), "do not lie in the block"},
      {named(good.slab, good.generation + 1, good.offset, lease), "do not lie in the block"},
      {named(good.slab, good.generation, good.offset + 1, lease), "do not lie in the block"},
      {named(good.slab, good.generation, good.offset, lease, kSize + 1), "do not lie in the block"},
      {named(good.slab, good.generation, UINT64_MAX - kSize, lease), "do not lie in the block"},
      {named(good.slab, good.generation, good.offset, lease, wire::kLeastReturned - 1),
       "length is 4095"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO("case " << i);
    Lending fresh;
    fresh.link.forge(fresh.link.b, message(1, 1, {cases[i].info}, {}, {}));
    Status status;
    while (status.ok() && fresh.link.on_the_way_to(fresh.link.a) != 0)
      status = fresh.link.receive(fresh.link.a);
    CHECK(status.code() == Code::kInternal);
    INFO(status.details());
    CHECK(status.details().find(cases[i].words) != std::string::npos);
    CHECK(fresh.link.a.received.empty());
  }
  // As forged, but right: and twice, as nothing says that a lease goes back once.
  link.forge(link.b,
             message(1, 1, {named(good.slab, good.generation, good.offset, lease)}, {}, {}));
  link.forge(link.b,
             message(1, 2, {named(good.slab, good.generation, good.offset, lease)}, {}, {}));
  while (link.on_the_way_to(link.a) != 0) REQUIRE(link.receive(link.a).ok());
  REQUIRE(link.a.received.size() == 2);
  CHECK(link.a.received[1].segments.at(0) == lending.bytes);
}

TEST_CASE("returned: a message above the receiver's limit is refused, and holds nothing") {
  EndOptions options = mapping();
  options.max_message = 2 * kSize - 1;
  Lending lending(options);
  FakeLink& link = lending.link;
  {
    std::array<OutSegment, 2> segments{back(link.b, 0, 0, kSize), back(link.b, 0, 0, kSize)};
    REQUIRE(link.b.sender.submit(1, {}, segments).ok());
  }
  link.b.kept.clear();
  link.settle();
  REQUIRE(link.a.received.size() == 1);
  CHECK(link.a.received[0].status.code() == Code::kResourceExhausted);
  CHECK(link.a.arena->stats().blocks == 0);
}

}  // namespace
}  // namespace tw::test
