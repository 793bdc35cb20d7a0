// SPDX-License-Identifier: Apache-2.0
// Peers that break the protocol: each mistake is an INTERNAL error that names the frame, the field
// and its value.
#include "test/message/fake_link.h"
#include "test/message/forge.h"

namespace tw::test {
namespace {

using wire::SegmentKind;

Bytes joined(const std::vector<Bytes>& frames) {
  Bytes out;
  for (const Bytes& frame : frames) out.insert(out.end(), frame.begin(), frame.end());
  return out;
}

// What the receiver says in the end of these bytes, handed over in pieces.
Status verdict(FakeLink& link, const Bytes& bytes, size_t piece) {
  link.forge(link.a, bytes);
  Status status;
  while (status.ok() && link.on_the_way_to(link.b) != 0) status = link.receive(link.b, piece);
  return status;
}

constexpr SegmentKind kInline = SegmentKind::kInline, kEager = SegmentKind::kEager,
                      kPush = SegmentKind::kPush, kRead = SegmentKind::kRead;

TEST_CASE("hostile: frames that do not fit what came before") {
  struct Case {
    std::vector<Bytes> before;  // good
    Bytes bad;
    std::vector<std::string_view> words;
  };
  const std::vector<wire::SegmentInfo> mixed = {
      {0, kInline, {}}, {10, kEager, {}}, {20, kEager, {}}, {30, kPush, {}}, {40, kRead, {}}};
  const Bytes five = message(7, 5, mixed, {}, {});
  const std::vector<Case> cases = {
      // Numbers of messages.
      {{announce(7, 5, kInline, 0)},
       announce(7, 5, kInline, 0),
       {"MESSAGE", "message is 5", "not above 5"}},
      {{five}, announce(8, 4, kPush, 9), {"MESSAGE", "message is 4", "not above 5"}},
      {{five}, announce(8, 1, kInline, 1), {"MESSAGE", "message is 1"}},
      // Messages that are not under way: never announced, already whole, aborted.
      {{}, eager(7, 5, 0, 1, 10), {"EAGER", "message is 5", "not under way"}},
      {{}, data(7, 5, 0, 0, 10), {"DATA", "message is 5", "not under way"}},
      {{}, rts(7, 5, 0, 0, 10), {"RTS", "message is 5", "not under way"}},
      {{}, abort(7, 5), {"ABORT", "message is 5", "not under way"}},
      {{announce(7, 5, kPush, 4), data(7, 5, 0, 0, 4)},
       data(7, 5, 0, 0, 4),
       {"DATA", "message is 5"}},
      {{announce(7, 5, kPush, 4), data(7, 5, 0, 0, 4)}, abort(7, 5), {"ABORT", "message is 5"}},
      {{announce(7, 5, kInline, 4)}, abort(7, 5), {"ABORT", "message is 5"}},
      {{five, abort(7, 5)}, abort(7, 5), {"ABORT", "message is 5"}},
      {{five, abort(7, 5)}, data(7, 5, 3, 0, 1), {"DATA", "message is 5"}},
      {{five, abort(7, 5)}, announce(7, 5, kInline, 0), {"MESSAGE", "message is 5"}},
      // A message of another stream.
      {{five}, eager(8, 5, 1, 1, 10), {"EAGER", "stream is 8", "message 5", "stream 7"}},
      {{five}, data(8, 5, 3, 0, 10), {"DATA", "stream is 8"}},
      {{five}, rts(8, 5, 4, 0, 10), {"RTS", "stream is 8"}},
      {{five}, abort(8, 5), {"ABORT", "stream is 8"}},
      // Segments that do not exist, or travel in another way.
      {{five}, eager(7, 5, 5, 1, 10), {"EAGER", "first_segment is 5", "has 5"}},
      {{five}, eager(7, 5, 1, 5, 10), {"EAGER", "first_segment is 1", "with 5 segments", "has 5"}},
      {{five}, data(7, 5, 5, 0, 10), {"DATA", "first_segment is 5", "has 5 segments"}},
      {{five}, rts(7, 5, 65'534, 0, 10), {"RTS", "first_segment is 65534", "has 5 segments"}},
      {{five}, eager(7, 5, 0, 2, 10), {"EAGER", "first_segment is 0", "segment 0 is not due"}},
      {{five}, eager(7, 5, 2, 2, 50), {"EAGER", "first_segment is 2", "segment 3 is not due"}},
      {{five}, data(7, 5, 1, 0, 10), {"DATA", "first_segment is 1", "PUSH"}},
      {{five}, data(7, 5, 4, 0, 10), {"DATA", "first_segment is 4", "PUSH"}},
      {{five}, rts(7, 5, 3, 0, 10), {"RTS", "first_segment is 3", "READ"}},
      // Out of order, twice, or of another length than announced.
      {{five, eager(7, 5, 1, 1, 10)},
       eager(7, 5, 1, 1, 10),
       {"EAGER", "first_segment is 1", "segment 1 is not due"}},
      {{five, eager(7, 5, 2, 1, 20)},
       eager(7, 5, 1, 1, 10),
       {"EAGER", "first_segment is 1", "segment 1 is not due"}},
      {{five}, eager(7, 5, 1, 2, 29), {"EAGER", "body_length is 29", "too short"}},
      {{five}, eager(7, 5, 1, 2, 31), {"EAGER", "body_length is 31", "1 bytes too long"}},
      {{five}, data(7, 5, 3, 1, 10), {"DATA", "offset is 1", "goes on at 0"}},
      {{five, data(7, 5, 3, 0, 10)},
       data(7, 5, 3, 0, 10),
       {"DATA", "offset is 0", "goes on at 10"}},
      {{five, data(7, 5, 3, 0, 10)},
       data(7, 5, 3, 10, 21),
       {"DATA", "body_length is 29", "beyond the end of segment 3"}},
      {{five, data(7, 5, 3, 0, 30)},
       data(7, 5, 3, 30, 1),
       {"DATA", "body_length is 9", "beyond the end"}},
      {{five}, rts(7, 5, 4, 1, 10), {"RTS", "segment_offset is 1", "goes on at 0"}},
      {{five, rts(7, 5, 4, 0, 10)},
       rts(7, 5, 4, 0, 10),
       {"RTS", "segment_offset is 0", "goes on at 10"}},
      {{five}, rts(7, 5, 4, 0, 41), {"RTS", "length is 41", "beyond the end of segment 4"}},
      // Ids that are not out. (Those frames are for the sender behind the same link.)
      {{}, fin({1}), {"FIN", "id is 1", "not out"}},
  };
  for (const Case& c : cases) {
    for (const size_t piece : {kAll, size_t{1}, size_t{33}}) {
      CAPTURE(&c - cases.data());
      CAPTURE(piece);
      FakeLink link({tiny(Bulk::kPush)});
      REQUIRE(verdict(link, joined(c.before), piece).ok());
      const Status status = verdict(link, c.bad, piece);
      check_says(status, Code::kInternal, {"protocol error: "});
      for (const std::string_view word : c.words) check_says(status, Code::kInternal, {word});
    }
  }
}

TEST_CASE("hostile: a refused message is held to the same rules") {
  EndOptions strict{tiny(Bulk::kPush)};
  strict.max_message = 10;
  FakeLink link({tiny(Bulk::kPush)}, strict);
  REQUIRE(verdict(link, joined({announce(1, 1, kPush, 30), data(1, 1, 0, 0, 10)}), kAll).ok());
  SUBCASE("offset") {
    check_says(verdict(link, data(1, 1, 0, 0, 10), kAll), Code::kInternal, {"offset is 0"});
  }
  SUBCASE("end") {
    check_says(verdict(link, data(1, 1, 0, 10, 21), kAll), Code::kInternal, {"beyond the end"});
  }
  SUBCASE("abort") {
    REQUIRE(verdict(link, abort(1, 1), kAll).ok());
    CHECK(link.b.received.empty());
    CHECK_FALSE(link.b.receiver.midway());
  }
}

TEST_CASE("hostile: leases and rendezvous are given back once") {
  for (const Bulk bulk : {Bulk::kMap, Bulk::kRead}) {
    CAPTURE(static_cast<int>(bulk));
    FakeLink link({tiny(bulk)});
    REQUIRE(link.b.post({1, {}, {{Bytes(64), Owner::kBlock}}}).ok());
    REQUIRE(link.b.sender.leases() == 1);
    SUBCASE("twice") {
      REQUIRE(verdict(link, fin({1}), kAll).ok());
      check_says(verdict(link, fin({1}), kAll), Code::kInternal,
                 {"protocol error", "FIN", "id is 1"});
    }
    SUBCASE("twice in one frame") {
      check_says(verdict(link, fin({1, 1}), kAll), Code::kInternal,
                 {"protocol error", "FIN", "id is 1"});
    }
    SUBCASE("one that is not out yet") {
      check_says(verdict(link, fin({2}), kAll), Code::kInternal,
                 {"protocol error", "FIN", "id is 2"});
    }
    SUBCASE("zero") {
      check_says(verdict(link, fin({0}), kAll), Code::kInternal,
                 {"protocol error", "FIN", "id is 0"});
    }
  }
}

TEST_CASE("hostile: messages that are begun and never ended are bounded") {
  FakeLink link({tiny(Bulk::kPush)});
  for (uint64_t number = 1; number <= 2048; ++number)
    REQUIRE(verdict(link, announce(number % 9, number, kPush, 1), kAll).ok());
  // Whole ones need no place.
  REQUIRE(verdict(link, announce(10, 2049, kInline, 1), kAll).ok());
  check_says(verdict(link, announce(1, 2050, kPush, 1), kAll), Code::kInternal,
             {"protocol error", "MESSAGE", "message is 2050", "2048 messages"});
}

TEST_CASE("hostile: offers that nobody here takes up are bounded") {
  FakeLink link({tiny(Bulk::kPush)});
  constexpr uint64_t kMost = 262'144;
  REQUIRE(verdict(link, announce(1, 1, kRead, 1'000'000), kAll).ok());
  for (uint64_t offset = 0; offset < kMost; ++offset)
    REQUIRE(verdict(link, rts(1, 1, 0, offset, 1), kAll).ok());
  // That somebody has begun to read makes no room.
  (void)link.b.receiver.take_reads();
  check_says(verdict(link, rts(1, 1, 0, kMost, 1), kAll), Code::kInternal,
             {"protocol error", "RTS", "message is 1", "262144"});
}

TEST_CASE("hostile: a sentence of the wire codec passes through") {
  FakeLink link({tiny(Bulk::kPush)});
  Bytes frame = announce(1, 1, kInline, 3);
  poke(frame, 5, uint8_t{1});
  check_says(verdict(link, frame, 7), Code::kInternal, {"protocol error", "flags is 1"});
}

TEST_CASE("hostile: messages behind an unfinished one are let go with the machine") {
  const auto pool = make_ref<Pool>(size_t{1} << 20);
  {
    FakeLink link({tiny(Bulk::kPush)}, {tiny(Bulk::kPush)},
                  make_ref<Arena>(size_t{64} << 20, size_t{16} << 20), pool);
    REQUIRE(verdict(link,
                    joined({announce(1, 1, kPush, 50'000), announce(1, 2, kInline, 9),
                            announce(1, 3, kPush, 40'000), data(1, 3, 0, 0, 33'000),
                            announce(1, 4, kRead, 40'000), rts(1, 4, 0, 0, 100)}),
                    kAll)
                .ok());
    link.b.start_reads();
    CHECK(link.b.received.empty());
    CHECK(pool->stats().used != 0);
  }
  CHECK(pool->stats().used == 0);
}

}  // namespace
}  // namespace tw::test
