// SPDX-License-Identifier: Apache-2.0
// One-sided operations between two machines without any I/O: what each does, in which order, how
// they end, and what a peer that breaks the rules gets.
#include "test/access/machines.h"

#include "test/wire/frame_samples.h"

namespace tw::test {
namespace {

using wire::OperationKind;

constexpr Rights kAll = kMayRead | kMayWrite | kMayUpdate;
constexpr OperationKind kKinds[] = {OperationKind::kRead, OperationKind::kWrite,
                                    OperationKind::kWriteImmediate, OperationKind::kFetchAdd,
                                    OperationKind::kCompareSwap};

AccessRequest request(OperationKind kind, uint64_t region, uint64_t offset, std::byte* local,
                      uint64_t length) {
  AccessRequest out;
  out.kind = kind;
  out.region = region;
  out.offset = offset;
  out.local = local;
  out.length = length;
  return out;
}

uint64_t word(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

TEST_CASE("one-sided: reads and writes of every size around a piece move exactly their bytes") {
  for (const size_t move : {size_t{1}, size_t{7}, SIZE_MAX}) {
    for (const size_t size : {0, 1, 63, 64, 65, 128, 129, 1000}) {
      CAPTURE(move);
      CAPTURE(size);
      Sides sides;
      const uint64_t region = sides.b.expose(size + 20, kAll);
      const std::byte* const memory = sides.b.exposed;
      REQUIRE(sides.settle().ok());
      Random random(size);
      Bytes written = random.bytes(size);
      auto write = sides.a.start(request(OperationKind::kWrite, region, 10, written.data(), size));
      REQUIRE(write.ok());
      CHECK_FALSE((*write)->ended());
      REQUIRE(sides.settle(move).ok());
      REQUIRE((*write)->ended());
      CHECK((*write)->status().ok());
      CHECK(Bytes(memory + 10, memory + 10 + size) == written);
      CHECK(Bytes(memory, memory + 10) == Bytes(10));
      CHECK(Bytes(memory + 10 + size, memory + 20 + size) == Bytes(10));

      Bytes read(size);
      auto back = sides.a.start(request(OperationKind::kRead, region, 10, read.data(), size));
      REQUIRE(back.ok());
      REQUIRE(sides.settle(move).ok());
      CHECK((*back)->ended());
      CHECK(read == written);
      CHECK(sides.a.told.count() == 2);
      CHECK(sides.a.initiator.outstanding() == 0);
    }
  }
}

TEST_CASE("one-sided: atomics give the value before them") {
  Sides sides;
  const uint64_t region = sides.b.expose(24, kMayUpdate);
  REQUIRE(sides.settle().ok());
  uint64_t before[4]{};
  const auto update = [&](OperationKind kind, uint64_t operand, uint64_t expected, uint64_t& old) {
    auto wanted = request(kind, region, 8, reinterpret_cast<std::byte*>(&old), 8);
    wanted.operand = operand;
    wanted.expected = expected;
    REQUIRE(sides.a.start(wanted).ok());
  };
  update(OperationKind::kFetchAdd, 5, 0, before[0]);
  update(OperationKind::kFetchAdd, UINT64_MAX, 0, before[1]);
  update(OperationKind::kCompareSwap, 9, 3, before[2]);  // 4 is there: nothing changes
  update(OperationKind::kCompareSwap, 9, 4, before[3]);
  REQUIRE(sides.settle().ok());
  CHECK(before[0] == 0);
  CHECK(before[1] == 5);
  CHECK(before[2] == 4);
  CHECK(before[3] == 4);
  CHECK(word(sides.b.exposed + 8) == 9);
  CHECK(word(sides.b.exposed) == 0);
  CHECK(word(sides.b.exposed + 16) == 0);
}

TEST_CASE("one-sided: a write with immediate tells its value once, when all of it is there") {
  Sides sides;
  const uint64_t region = sides.b.expose(1000, kMayWrite);
  REQUIRE(sides.settle().ok());
  Random random(1);
  Bytes bytes = random.bytes(1000);
  for (const uint32_t value : {0u, 7u, UINT32_MAX}) {
    auto wanted = request(OperationKind::kWriteImmediate, region, 0, bytes.data(),
                          value == 0 ? 0 : bytes.size());
    wanted.immediate = value;
    REQUIRE(sides.a.start(wanted).ok());
  }
  uint32_t value = 1;
  while (!sides.b.target.take_immediate(value)) {
    sides.a.send(1);
    REQUIRE(sides.b.receive().ok());
  }
  CHECK(value == 0);
  while (!sides.b.target.take_immediate(value)) {
    sides.a.send(1);
    REQUIRE(sides.b.receive().ok());
  }
  CHECK(value == 7);
  CHECK(Bytes(sides.b.exposed, sides.b.exposed + 1000) == bytes);
  REQUIRE(sides.settle().ok());
  CHECK(sides.b.target.immediates() == 1);
  CHECK(sides.b.target.take_immediate(value));
  CHECK(value == UINT32_MAX);
}

TEST_CASE("one-sided: values that nobody takes are refused past their limit") {
  Sides sides;
  const uint64_t region = sides.b.expose(8, kMayWrite);
  REQUIRE(sides.settle().ok());
  for (size_t i = 0; i < Target::kMaxImmediates; ++i)
    REQUIRE(sides.b.target.add_immediate(static_cast<uint32_t>(i)));
  CHECK_FALSE(sides.b.target.add_immediate(1));
  std::byte byte{9};
  auto refused = sides.a.start(request(OperationKind::kWriteImmediate, region, 0, &byte, 1));
  REQUIRE(sides.settle().ok());
  check_says((*refused)->status(), Code::kResourceExhausted, {"65536", "immediate"});
  CHECK(*sides.b.exposed == std::byte{0});
  uint32_t value;
  CHECK(sides.b.target.take_immediate(value));
  auto again = sides.a.start(request(OperationKind::kWriteImmediate, region, 0, &byte, 1));
  REQUIRE(sides.settle().ok());
  CHECK((*again)->status().ok());
}

TEST_CASE("one-sided: a window of pieces is outstanding, and the rest waits") {
  Sides sides(8);
  const uint64_t region = sides.b.expose(8 * 10'000, kAll);
  REQUIRE(sides.settle().ok());
  Bytes bytes = Random(3).bytes(8 * 10'000);
  auto write = sides.a.start(request(OperationKind::kWrite, region, 0, bytes.data(), bytes.size()));
  CHECK(sides.a.initiator.outstanding() == Initiator::kWindowPieces);
  CHECK(sides.a.out.size() == Initiator::kWindowPieces);
  while (sides.a.send() != 0) REQUIRE(sides.b.receive().ok());
  while (sides.b.send() != 0) continue;
  for (size_t left = Initiator::kWindowPieces - 1; left > Initiator::kWindowPieces / 2; --left) {
    REQUIRE(sides.a.receive(wire::kOutcomeFramePrefixSize).ok());
    CHECK(sides.a.initiator.outstanding() == left);
  }
  REQUIRE(sides.a.receive(wire::kOutcomeFramePrefixSize).ok());
  CHECK(sides.a.initiator.outstanding() == Initiator::kWindowPieces);
  CHECK(sides.a.out.size() == Initiator::kWindowPieces / 2);
  REQUIRE(sides.settle(1000).ok());
  CHECK((*write)->status().ok());
  CHECK(Bytes(sides.b.exposed, sides.b.exposed + bytes.size()) == bytes);

  Sides large(12 << 20);
  const uint64_t wide = large.b.expose(100 << 20, kAll);
  REQUIRE(large.settle().ok());
  Bytes many(100 << 20);
  auto read = large.a.start(request(OperationKind::kRead, wide, 0, many.data(), many.size()));
  CHECK(large.a.initiator.outstanding() == 1);
  REQUIRE(large.settle().ok());
  CHECK((*read)->status().ok());
}

TEST_CASE("one-sided: what cannot be right is refused before it begins") {
  Sides sides;
  for (Rights rights = 0; rights <= kAll; ++rights) {
    const uint64_t region = sides.b.expose(64, rights);
    REQUIRE(sides.settle().ok());
    for (const OperationKind kind : kKinds) {
      CAPTURE(rights);
      CAPTURE(static_cast<uint32_t>(kind));
      std::byte local[8];
      const auto started = sides.a.start(request(kind, region, 0, local, 8));
      const Rights needed = wire::updates(kind)  ? kMayUpdate
                            : wire::writes(kind) ? kMayWrite
                                                 : kMayRead;
      CHECK(started.ok() == ((rights & needed) != 0));
      if (!started.ok()) check_says(started.status(), Code::kPermissionDenied, {"not exposed for"});
      REQUIRE(sides.settle().ok());
    }
  }
  const uint64_t region = sides.b.expose(64, kAll);
  REQUIRE(sides.settle().ok());
  std::byte local[64];
  const auto refused = [&](OperationKind kind, uint64_t where, uint64_t offset, uint64_t length) {
    const auto started = sides.a.start(request(kind, where, offset, local, length));
    REQUIRE_FALSE(started.ok());
    return started.status();
  };
  check_says(refused(OperationKind::kRead, region, 0, 65), Code::kOutOfRange, {"65 bytes", "64"});
  check_says(refused(OperationKind::kWrite, region, 64, 1), Code::kOutOfRange, {"offset 64"});
  check_says(refused(OperationKind::kWrite, region, UINT64_MAX, 2), Code::kOutOfRange, {"offset"});
  check_says(refused(OperationKind::kWrite, region, 65, 0), Code::kOutOfRange, {"offset 65"});
  check_says(refused(OperationKind::kFetchAdd, region, 4, 8), Code::kInvalidArgument, {"8"});
  check_says(refused(OperationKind::kFetchAdd, region, 0, 4), Code::kInvalidArgument, {"8 bytes"});
  check_says(refused(OperationKind::kRead, 99, 0, 1), Code::kNotFound, {"region 99"});
  CHECK(sides.a.start(request(OperationKind::kRead, region, 64, local, 0)).ok());
  CHECK(sides.a.out.size() == 1);
}

// The same, from a peer that does not check: the target does.
TEST_CASE("hostile: forged operations end with a status, and the link lives on") {
  struct Case {
    wire::OperationFrame operation;
    Code code;
  };
  Sides sides;
  const uint64_t readable = sides.b.expose(64, kMayRead);
  const uint64_t writable = sides.b.expose(64, kMayWrite);
  const uint64_t updatable = sides.b.expose(64, kMayUpdate);
  std::byte* const memory = sides.b.exposed;
  const uint64_t gone = sides.b.expose(64, kAll);
  REQUIRE(sides.settle().ok());
  REQUIRE(sides.b.conceal(gone));
  REQUIRE(sides.settle().ok());
  using K = OperationKind;
  const std::vector<Case> cases = {
      {{1, 77, 0, 8, 0, 0, K::kRead, 0}, Code::kNotFound},
      {{1, gone, 0, 8, 0, 0, K::kRead, 0}, Code::kNotFound},
      {{1, gone, 0, 8, 0, 0, K::kWrite, 0}, Code::kNotFound},
      {{1, readable, 0, 8, 0, 0, K::kWrite, 0}, Code::kPermissionDenied},
      {{1, readable, 0, 8, 0, 0, K::kWriteImmediate, 5}, Code::kPermissionDenied},
      {{1, readable, 0, 8, 1, 0, K::kFetchAdd, 0}, Code::kPermissionDenied},
      {{1, writable, 0, 8, 0, 0, K::kRead, 0}, Code::kPermissionDenied},
      {{1, writable, 0, 8, 1, 1, K::kCompareSwap, 0}, Code::kPermissionDenied},
      {{1, updatable, 0, 8, 0, 0, K::kRead, 0}, Code::kPermissionDenied},
      {{1, readable, 57, 8, 0, 0, K::kRead, 0}, Code::kOutOfRange},
      {{1, readable, 65, 0, 0, 0, K::kRead, 0}, Code::kOutOfRange},
      {{1, readable, UINT64_MAX, 64, 0, 0, K::kRead, 0}, Code::kOutOfRange},
      {{1, readable, UINT64_MAX - 7, 8, 0, 0, K::kRead, 0}, Code::kOutOfRange},
      {{1, writable, 60, 8, 0, 0, K::kWrite, 0}, Code::kOutOfRange},
      {{1, writable, UINT64_MAX - 3, 8, 0, 0, K::kWrite, 0}, Code::kOutOfRange},
      {{1, updatable, 64, 8, 1, 0, K::kFetchAdd, 0}, Code::kOutOfRange},
      {{1, updatable, 1, 8, 1, 0, K::kFetchAdd, 0}, Code::kInvalidArgument},
      {{1, updatable, 60, 8, 1, 0, K::kFetchAdd, 0}, Code::kOutOfRange},
  };
  for (const Case& one : cases) {
    CAPTURE(static_cast<uint32_t>(one.operation.kind));
    CAPTURE(one.operation.offset);
    sides.b.arrived = wire::operation_frame(
        one.operation,
        Bytes(wire::writes(one.operation.kind) ? one.operation.length : 0, std::byte{0xff}));
    REQUIRE(sides.b.receive().ok());
    sides.a.arrived.clear();
    sides.b.send();
    const Bytes answer = std::exchange(sides.a.arrived, {});
    const auto header = wire::good_header(answer);
    const auto outcome = wire::decode_outcome_prefix(
        header, wire::body_of(answer).first<wire::kOutcomePrefixSize>(), {});
    REQUIRE(outcome.ok());
    CHECK(outcome->code == one.code);
    CHECK(outcome->length > 10);
  }
  CHECK(Bytes(memory, memory + 64) == Bytes(64));
  CHECK(sides.b.target.immediates() == 0);
  std::byte local[8];
  auto good = sides.a.start(request(K::kRead, readable, 0, local, 8));
  REQUIRE(sides.settle().ok());
  CHECK((*good)->status().ok());
}

TEST_CASE("hostile: frames about operations that do not fit what came before end the link") {
  const auto verdict = [](const std::vector<Bytes>& frames) {
    Sides sides;
    const uint64_t region = sides.b.expose(64, kAll);
    REQUIRE(region == 1);
    REQUIRE(sides.settle().ok());
    std::byte local[8];
    REQUIRE(sides.a.start(request(OperationKind::kRead, region, 0, local, 8)).ok());
    REQUIRE(sides.a.start(request(OperationKind::kWrite, region, 0, local, 8)).ok());
    Status status;
    for (const Bytes& frame : frames) {
      sides.a.arrived = frame;
      while (status.ok() && !sides.a.arrived.empty()) status = sides.a.receive();
    }
    return status;
  };
  Bytes exposed(wire::kRegionFrameSize), unknown(wire::kRegionGoneFrameSize);
  wire::encode_region(exposed.data(), {1, 64, 0, 0, 1});
  wire::encode_region_gone(unknown.data(), 2);
  const Bytes good = wire::outcome_frame(1, Code::kOk, Bytes(8));
  CHECK(verdict({good}).ok());
  check_says(verdict({exposed}), Code::kInternal, {"REGION frame", "id is 1", "was 1"});
  // What was checked against a region that has gone must not meet another one.
  Bytes gone(wire::kRegionGoneFrameSize), third(wire::kRegionFrameSize);
  wire::encode_region_gone(gone.data(), 1);
  wire::encode_region(third.data(), {3, 64, 0, 0, 1});
  check_says(verdict({gone, exposed}), Code::kInternal, {"REGION frame", "id is 1", "was 1"});
  CHECK(verdict({gone, third}).ok());
  check_says(verdict({unknown}), Code::kInternal, {"REGION_GONE", "region is 2"});
  check_says(verdict({wire::outcome_frame(3, Code::kOk, {})}), Code::kInternal,
             {"OUTCOME", "id is 3", "not under way"});
  check_says(verdict({wire::outcome_frame(0, Code::kNotFound, {})}), Code::kInternal,
             {"OUTCOME", "id is 0"});
  check_says(verdict({good, good}), Code::kInternal, {"OUTCOME", "id is 1", "not under way"});
  check_says(verdict({wire::outcome_frame(1, Code::kOk, Bytes(7))}), Code::kInternal,
             {"OUTCOME", "7 bytes instead of 8"});
  check_says(verdict({wire::outcome_frame(1, Code::kOk, Bytes(9))}), Code::kInternal,
             {"OUTCOME", "9 bytes instead of 8"});
  check_says(verdict({wire::outcome_frame(2, Code::kOk, Bytes(1))}), Code::kInternal,
             {"OUTCOME", "1 bytes instead of 0"});
  check_says(verdict({wire::outcome_frame(1, Code::kNotFound, hex("ff"))}), Code::kInternal,
             {"OUTCOME", "UTF-8"});

  // A peer that asks and never reads the answers.
  Sides sides;
  const uint64_t region = sides.b.expose(64, kAll);
  Status status;
  for (size_t i = 0; i <= wire::kMaxOperations && status.ok(); ++i) {
    sides.b.arrived =
        wire::operation_frame({i + 1, region, 0, 8, 1, 0, OperationKind::kFetchAdd, 0});
    status = sides.b.receive();
  }
  check_says(status, Code::kInternal, {"OPERATION", "id is 1025", "1024 before it"});
}

TEST_CASE("one-sided: a region can be concealed at any byte of an operation") {
  for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
    bool some_succeeded = false, some_failed = false;
    for (size_t steps = 0; steps < 1300; steps += 7) {
      CAPTURE(steps);
      Sides sides;
      const uint64_t region = sides.b.expose(300, kAll);
      REQUIRE(sides.settle().ok());
      Bytes local = Random(steps).bytes(300);
      auto access = sides.a.start(request(kind, region, 0, local.data(), 300));
      auto other = sides.a.start(request(OperationKind::kRead, region, 0, local.data(), 1));
      size_t moved = 0;
      for (bool more = true; more && moved < steps;) {
        const size_t before = moved;
        for (Side* side : {&sides.a, &sides.b}) {
          moved += side->send(1);
          if (!side->arrived.empty()) REQUIRE(side->receive(1).ok());
        }
        more = moved != before;
      }
      CHECK(sides.b.live == 1);
      CHECK(sides.b.conceal(region));
      CHECK(sides.b.live == 0);  // freed: a sanitizer sees who still looks there
      CHECK_FALSE(sides.b.conceal(region));
      REQUIRE(sides.settle(5).ok());
      for (const auto& ended : {*access, *other}) {
        REQUIRE(ended->ended());
        if (!ended->status().ok())
          check_says(ended->status(), Code::kNotFound, {"region 1", "concealed"});
      }
      some_succeeded = some_succeeded || (*access)->status().ok();
      some_failed = some_failed || !(*access)->status().ok();
      CHECK(sides.a.initiator.outstanding() == 0);
      CHECK_FALSE(sides.a.out.pending());
      check_says(sides.a.start(request(kind, region, 0, local.data(), 1)).status(), Code::kNotFound,
                 {"region 1"});
    }
    CHECK(some_succeeded);
    CHECK(some_failed);
  }
}

TEST_CASE("one-sided: closing ends everything at any byte, and local memory is free") {
  for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
    for (size_t steps = 0; steps < 700; steps += 11) {
      CAPTURE(steps);
      Sides sides;
      const uint64_t region = sides.b.expose(300, kAll);
      REQUIRE(sides.settle().ok());
      size_t live = 0;
      std::vector<Ref<Access>> all;
      for (int i = 0; i < 3; ++i) {
        auto local = make_ref<Words>(300, live);
        all.push_back(sides.a.start(request(kind, region, 0, local->data(), 300), local).value());
      }
      for (size_t moved = 0; moved < steps;) {
        size_t now = 0;
        for (Side* side : {&sides.a, &sides.b}) {
          now += side->send(1);
          if (!side->arrived.empty()) REQUIRE(side->receive(1).ok());
        }
        if (now == 0) break;
        moved += now;
      }
      if (sides.a.initiator.inbound() && sides.a.receiver.placing()) sides.a.receiver.misplace();
      sides.a.initiator.close({Code::kCancelled, "closed"});
      sides.a.finish();
      CHECK(live == 0);
      CHECK(sides.a.told.count() == 3);
      for (const auto& access : all) {
        CHECK(access->ended());
        CHECK((access->status().ok() || access->status().code() == Code::kCancelled));
      }
      // What was under way on the wire ends as it began.
      REQUIRE(sides.settle(3).ok());
      CHECK_FALSE(sides.a.out.pending());
      CHECK(sides.a.told.count() == 3);
      check_says(sides.a.start(request(kind, region, 0, nullptr, 0)).status(), Code::kCancelled,
                 {"closed"});
    }
  }
}

TEST_CASE("one-sided: a lost link ends each operation once, wholly issued or not") {
  Sides sides(8);
  const uint64_t region = sides.b.expose(8 * 1000, kAll);
  REQUIRE(sides.settle().ok());
  Bytes bytes(8 * 1000);
  std::vector<Ref<Access>> all;
  for (const size_t size : {8, 8 * 1000, 8 * 1000, 8})
    all.push_back(
        sides.a.start(request(OperationKind::kWrite, region, 0, bytes.data(), size)).value());
  sides.a.initiator.drop({Code::kUnavailable, "lost"});
  sides.a.finish();
  for (const auto& access : all) CHECK(access->status().code() == Code::kUnavailable);
  CHECK(sides.a.told.count() == 4);
}

TEST_CASE("one-sided: a target that is closing says so, and lets go of its memory") {
  Sides sides;
  const uint64_t region = sides.b.expose(64, kAll);
  REQUIRE(sides.settle().ok());
  std::byte local[8];
  auto access = sides.a.start(request(OperationKind::kRead, region, 0, local, 8));
  sides.b.target.close({Code::kUnavailable, "going"});
  CHECK(sides.b.target.drop().size() == 1);
  REQUIRE(sides.settle().ok());
  check_says((*access)->status(), Code::kUnavailable, {"going"});
}

// Pieces as a device would do them: any order, some refused.
TEST_CASE("one-sided: pieces for a device are started by hand and completed in any order") {
  FrameQueue out;
  Initiator initiator(out, 64, true);
  REQUIRE(initiator.on_region({5, 1000, 0x10000, 42, kAll}).ok());
  std::vector<std::byte> local(300);
  ToldEnds told;
  auto access = initiator.submit(request(OperationKind::kWriteImmediate, 5, 100, local.data(), 300),
                                 {}, told.next());
  REQUIRE(access.ok());
  std::vector<Operation> pieces;
  while (const auto piece = initiator.next()) {
    pieces.push_back(*piece);
    initiator.taken(*piece);
  }
  REQUIRE(pieces.size() == 5);
  for (size_t i = 0; i < pieces.size(); ++i) {
    CHECK(pieces[i].local == local.data() + 64 * i);
    CHECK(pieces[i].length == (i == 4 ? 44 : 64));
    CHECK(pieces[i].remote.address == 0x10000 + 100 + 64 * i);
    CHECK(pieces[i].remote.key == 42);
    CHECK(pieces[i].kind == (i == 4 ? Operation::Kind::kWriteImmediate : Operation::Kind::kWrite));
    CHECK((pieces[i].id & Operation::kIdBit) != 0);
  }
  CHECK_FALSE(out.pending());
  for (const size_t at : {4, 0, 2, 1}) {
    REQUIRE(initiator.completed({pieces[at].id, {}}).ok());
    CHECK(initiator.take_ended().empty());
  }
  CHECK_FALSE(initiator.completed({pieces[0].id, {}}).ok());
  // A close leaves to the device what it has begun.
  initiator.close({Code::kCancelled, "closed"});
  CHECK(initiator.take_ended().empty());
  REQUIRE(initiator.completed({pieces[3].id, {Code::kPermissionDenied, "no"}}).ok());
  auto ended = initiator.take_ended();
  REQUIRE(ended.pop().get() == access->get());
  CHECK(ended.empty());
  (*access)->finish();
  CHECK(told.count() == 1);
  CHECK((*access)->status().code() == Code::kPermissionDenied);
}

TEST_CASE("one-sided: a region that goes ends what the device has not begun") {
  FrameQueue out;
  Initiator initiator(out, 64, true);
  REQUIRE(initiator.on_region({5, 1000, 0x10000, 42, kAll}).ok());
  std::vector<std::byte> local(300);
  auto access = initiator.submit(request(OperationKind::kRead, 5, 0, local.data(), 300), {}, {});
  const auto first = initiator.next();
  initiator.taken(*first);
  REQUIRE(initiator.on_region_gone(5).ok());
  CHECK_FALSE(initiator.next());
  CHECK(initiator.take_ended().empty());
  REQUIRE(initiator.completed({first->id, {}}).ok());
  auto ended = initiator.take_ended();
  REQUIRE(ended.pop().get() == access->get());
  CHECK(ended.empty());
  (*access)->finish();
  CHECK((*access)->status().code() == Code::kNotFound);
}

TEST_CASE("one-sided: a fence stays where the operation behind it ends with its region") {
  for (const bool queued : {true, false}) {  // what comes after that, before the region goes
    CAPTURE(queued);
    FrameQueue out;
    Initiator initiator(out, 64, true);
    REQUIRE(initiator.on_region({5, 64, 0x10000, 42, kAll}).ok());
    REQUIRE(initiator.on_region({6, 64, 0x20000, 43, kAll}).ok());
    std::vector<std::byte> got(64), sent(64);
    const auto begin = [&](OperationKind kind, uint64_t region, std::vector<std::byte>& local) {
      return initiator.submit(request(kind, region, 0, local.data(), 64), {}, {}).value();
    };
    const auto read = begin(OperationKind::kRead, 6, got);
    const auto before = initiator.next();
    REQUIRE(before);
    initiator.taken(*before);
    initiator.fence();
    const auto lost = begin(OperationKind::kWrite, 5, sent);
    Ref<Access> last;
    if (queued) last = begin(OperationKind::kWrite, 6, sent);
    REQUIRE(initiator.on_region_gone(5).ok());
    if (!queued) last = begin(OperationKind::kWrite, 6, sent);
    CHECK_FALSE(initiator.next());
    REQUIRE(initiator.completed({before->id, {}}).ok());
    const auto after = initiator.next();
    REQUIRE(after);
    CHECK(after->remote.address == 0x20000);
    initiator.taken(*after);
    REQUIRE(initiator.completed({after->id, {}}).ok());
    auto ended = initiator.take_ended();
    for (const auto& due : {lost, read, last}) {
      const auto one = ended.pop();
      REQUIRE(one.get() == due.get());
      one->finish();
    }
    CHECK(lost->status().code() == Code::kNotFound);
    CHECK(last->status().ok());
  }
}

TEST_CASE("one-sided: random operations leave what a model says") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Sides sides(1 + random.up_to(200));
    constexpr size_t kSize = 512;
    const uint64_t region = sides.b.expose(kSize, kAll);
    REQUIRE(sides.settle().ok());
    Bytes model(kSize);
    std::vector<std::pair<Ref<Access>, Bytes>> reads;  // and what is due
    std::vector<std::unique_ptr<Bytes>> locals;
    for (int i = 0; i < 200; ++i) {
      const auto kind = static_cast<OperationKind>(random.up_to(4));
      uint64_t offset = random.up_to(kSize);
      uint64_t length = random.up_to(kSize - offset);
      if (wire::updates(kind)) {
        offset = 8 * random.up_to(kSize / 8 - 1);
        length = 8;
      }
      locals.push_back(std::make_unique<Bytes>(random.bytes(length)));
      auto wanted = request(kind, region, offset, locals.back()->data(), length);
      wanted.operand = random.number();
      wanted.expected = random.chance(50) ? word(model.data() + offset / 8 * 8 % kSize) : 0;
      wanted.immediate = static_cast<uint32_t>(i);
      if (wire::writes(kind)) {
        wanted.operand = wanted.expected = 0;
        std::copy(locals.back()->begin(), locals.back()->end(),
                  model.begin() + static_cast<std::ptrdiff_t>(offset));
      }
      // A write may overtake a read: the model waits for it.
      const bool changes = kind != OperationKind::kRead;
      if (changes && !reads.empty()) {
        REQUIRE(sides.settle(1 + random.up_to(50)).ok());
        for (auto& [access, due] : reads) CHECK(access->ended());
        reads.clear();
      }
      auto started = sides.a.start(wanted);
      REQUIRE(started.ok());
      if (wire::updates(kind)) {
        const uint64_t before = word(model.data() + offset);
        uint64_t after = before;
        if (kind == OperationKind::kFetchAdd) after += wanted.operand;
        if (kind == OperationKind::kCompareSwap && before == wanted.expected)
          after = wanted.operand;
        std::memcpy(model.data() + offset, &after, sizeof after);
        REQUIRE(sides.settle(1 + random.up_to(50)).ok());
        CHECK(word(locals.back()->data()) == before);
      } else if (kind == OperationKind::kRead) {
        const auto from = model.begin() + static_cast<std::ptrdiff_t>(offset);
        reads.emplace_back(*started, Bytes(from, from + static_cast<std::ptrdiff_t>(length)));
        if (random.chance(50)) {
          REQUIRE(sides.settle(1 + random.up_to(50)).ok());
          CHECK(*locals.back() == reads.back().second);
          reads.clear();
        }
      }
    }
    REQUIRE(sides.settle().ok());
    CHECK(Bytes(sides.b.exposed, sides.b.exposed + kSize) == model);
    CHECK(sides.a.told.count() == 200);
  }
}

}  // namespace
}  // namespace tw::test
