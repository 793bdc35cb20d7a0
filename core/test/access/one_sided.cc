// SPDX-License-Identifier: Apache-2.0
// One suite of one-sided operations over every transport: whether a device does them or the peer's
// runtime, they mean the same.
#include "test/access/one_sided.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

namespace tw::test {
namespace {

TEST_CASE_TEMPLATE("one-sided: reads and writes of any size move exactly their bytes", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  {
    OneSidedHouse<Way> house;
    Ends<Way> ends(house);
    const size_t chunk = ends.client->link().profile().chunk_bytes;
    constexpr size_t kMargin = 4096;
    const auto [region, memory] = expose(ends, (64 << 20) + 2 * kMargin, kAllRights, live);
    const uint64_t readable = for_reading(ends, region, *memory);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{39}, size_t{4096}, size_t{65'536},
                              chunk - 1, chunk, chunk + 1, size_t{64} << 20}) {
      CAPTURE(size);
      meet(ends.there());
      std::fill_n(memory->data(), size + 2 * kMargin, std::byte{0x5a});
      meet(ends.there());
      std::vector<std::byte> sent = bytes_of(size, static_cast<uint32_t>(size));
      REQUIRE(write(ends.here(), region, kMargin, sent).ok());
      meet(ends.there());
      CHECK(std::equal(sent.begin(), sent.end(), memory->data() + kMargin));
      const auto untouched = [&](const std::byte* from) {
        return std::all_of(from, from + kMargin, [](std::byte b) { return b == std::byte{0x5a}; });
      };
      CHECK(untouched(memory->data()));
      CHECK(untouched(memory->data() + kMargin + size));
      std::vector<std::byte> got(size + 2);
      REQUIRE(read(ends.here(), readable, kMargin, std::span(got).subspan(1, size)).ok());
      CHECK(std::equal(sent.begin(), sent.end(), got.begin() + 1));
      CHECK(got.front() == std::byte{0});
      CHECK(got.back() == std::byte{0});
    }
    CHECK(live == 1);
    if (readable != region) CHECK(ends.there().conceal(readable).ok());
    CHECK(ends.there().conceal(region).ok());
    CHECK(live == 0);
  }
}

TEST_CASE_TEMPLATE("one-sided: what was done is counted by the way that it went", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const auto [region, memory] = expose(ends, 4096, kAllRights, live);
  const uint64_t readable = for_reading(ends, region, *memory);
  const auto sent = bytes_of(100);
  std::vector<std::byte> got(50);
  REQUIRE(write(ends.here(), region, 0, sent).ok());
  REQUIRE(read(ends.here(), readable, 0, got).ok());
  update(ends.here(), Kind::kFetchAdd, region, 8, 1);
  auto* const local = const_cast<std::byte*>(sent.data());
  const auto batch = ends.here()
                         .prepare(std::array{access(Kind::kWrite, region, 200, local, 16),
                                             access(Kind::kWrite, region, 1000, local, 24)},
                                  Signal{region, 16, 1, false})
                         .value();
  CHECK(ended(ends.here(), *ends.here().start(batch, std::nullopt, {}).value()).ok());
  // Refused at once: nothing has begun.
  CHECK(read(ends.here(), readable, 4090, got).code() == Code::kOutOfRange);

  const AccessCounters mine = ends.client->stats().accesses;
  const AccessCounters theirs = ends.server->stats().accesses;
  constexpr uint64_t kEach = 4, kEachBytes = 198;
  const uint64_t by_device = ends.client->link().profile().one_sided ? kEach : 0;
  const uint64_t mapped = mapped_with<Way>(kAllRights) ? kEach : mapped_with<Way>(kMayRead) ? 1 : 0;
  const uint64_t mapped_bytes = mapped == kEach ? kEachBytes : mapped * got.size();
  CHECK(mine.mapped == mapped);
  CHECK(mine.mapped_bytes == mapped_bytes);
  CHECK(mine.by_device == by_device);
  CHECK(mine.by_device_bytes == (by_device == 0 ? 0 : kEachBytes));
  CHECK(mine.by_frames == kEach - by_device - mapped);
  CHECK(mine.by_frames_bytes == (by_device == 0 ? kEachBytes - mapped_bytes : 0));
  // The batch takes three: its signal is one.
  CHECK(theirs.served == (mine.by_frames == 0 ? 0 : mine.by_frames + 2));
  CHECK(theirs.served_bytes == (mine.by_frames == 0 ? 0 : mine.by_frames_bytes + 8));
  const uint64_t regions = readable == region ? 1 : 2;
  CHECK(theirs.exposed == regions);
  CHECK(theirs.exposed_bytes == regions * 4096);
  CHECK(mine.known == regions);
  CHECK(mine.known_mapped == (mapped == 0 ? 0 : 1));
  CHECK(mine.exposed + mine.served + theirs.known + theirs.by_frames + theirs.mapped == 0);
  CHECK(ends.there().conceal(region).ok());
  CHECK(ends.server->stats().accesses.exposed == regions - 1);
}

TEST_CASE_TEMPLATE("one-sided: either end of a link lets the other at its memory", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  {
    OneSidedHouse<Way> house;
    Ends<Way> ends(house);
    auto memory = make_ref<Storage>(100, live, kFrom<Way>);
    auto region = ends.here().expose(memory->data(), 100, kAllRights, memory);
    REQUIRE(region.ok());
    // Nobody drives the client but the background.
    arrived(ends.there(), *region);
    const auto sent = bytes_of(100);
    CHECK(write(ends.there(), *region, 0, sent).ok());
    meet(ends.here());
    CHECK(std::equal(sent.begin(), sent.end(), memory->data()));
    uint64_t due;
    std::memcpy(&due, sent.data() + 8, sizeof due);
    meet(ends.here());
    CHECK(update(ends.there(), Kind::kFetchAdd, *region, 8, 1) == due);
    memory = nullptr;
    CHECK(live == 1);
  }
  CHECK(eventually([&] { return live == 0; }));
}

TEST_CASE_TEMPLATE("one-sided: an operation sees what was written before it", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const auto [region, memory] = expose(ends, 1 << 20, kAllRights, live);
  const uint64_t readable = for_reading(ends, region, *memory);
  // Writes and reads of the same place in turns, none waited for before the next begins. A write
  // may overtake the read before it, so each pair has a place of its own.
  constexpr size_t kRounds = 200, kBytes = 5000;
  std::vector<std::vector<std::byte>> sent, got(kRounds);
  std::vector<Ref<Access>> started;
  for (size_t i = 0; i < kRounds; ++i) {
    sent.push_back(bytes_of(kBytes, static_cast<uint32_t>(i)));
    got[i].resize(kBytes);
    for (const auto& request : {access(Kind::kWrite, region, i * kBytes, sent[i].data(), kBytes),
                                access(Kind::kRead, readable, i * kBytes, got[i].data(), kBytes)}) {
      auto access_started = ends.here().start(request, {});
      REQUIRE(access_started.ok());
      started.push_back(std::move(*access_started));
    }
  }
  for (const auto& one : started) CHECK(ended(ends.here(), *one).ok());
  CHECK(got == sent);
}

TEST_CASE_TEMPLATE("one-sided: each right allows its operations and no others", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  for (Rights rights = 0; rights <= kAllRights; ++rights) {
    const auto [region, memory] = expose(ends, 64, rights, live);
    for (const Kind kind :
         {Kind::kRead, Kind::kWrite, Kind::kWriteImmediate, Kind::kFetchAdd, Kind::kCompareSwap}) {
      CAPTURE(rights);
      CAPTURE(static_cast<uint32_t>(kind));
      const Rights needed = wire::updates(kind)  ? kMayUpdate
                            : wire::writes(kind) ? kMayWrite
                                                 : kMayRead;
      alignas(8) std::byte local[8]{std::byte{1}};
      AccessRequest request = access(kind, region, 8, local, 8);
      if (wire::updates(kind)) request.operand = 3;
      const Status status = run(ends.here(), request);
      if ((rights & needed) != 0) {
        CHECK_MESSAGE(status.ok(), status.details());
      } else {
        CHECK(status.code() == Code::kPermissionDenied);
        CHECK(status.details().find("region " + std::to_string(region)) != std::string::npos);
      }
    }
    meet(ends.there());
    if ((rights & (kMayWrite | kMayUpdate)) == 0) CHECK(memory->words()[1] == 0);
    CHECK(ends.there().conceal(region).ok());
  }
  CHECK(ends.client->link().alive());
}

TEST_CASE_TEMPLATE("one-sided: what is outside of a region is refused, and the link lives", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const uint64_t region = expose(ends, 64, kAllRights, live).first;
  alignas(8) std::byte local[128]{};
  const auto code = [&](Kind kind, uint64_t offset, uint64_t length) {
    const Status status = run(ends.here(), access(kind, region, offset, local, length));
    CHECK(status.details().size() > 10);
    return status.code();
  };
  CHECK(code(Kind::kRead, 0, 65) == Code::kOutOfRange);
  CHECK(code(Kind::kRead, 64, 1) == Code::kOutOfRange);
  CHECK(code(Kind::kRead, 65, 0) == Code::kOutOfRange);
  CHECK(code(Kind::kWrite, 60, 8) == Code::kOutOfRange);
  CHECK(code(Kind::kWrite, UINT64_MAX - 3, 8) == Code::kOutOfRange);
  CHECK(code(Kind::kWriteImmediate, UINT64_MAX, 1) == Code::kOutOfRange);
  CHECK(code(Kind::kFetchAdd, 64, 8) == Code::kOutOfRange);
  CHECK(code(Kind::kFetchAdd, 4, 8) == Code::kInvalidArgument);
  CHECK(code(Kind::kCompareSwap, 8, 4) == Code::kInvalidArgument);
  CHECK(run(ends.here(), access(Kind::kRead, region + 1, 0, local, 1)).code() == Code::kNotFound);
  CHECK(read(ends.here(), region, 64, {local, 0}).ok());
  CHECK(read(ends.here(), region, 0, {local, 64}).ok());

  CHECK(ends.there().expose(local, 0, kMayRead, {}).status().code() == Code::kInvalidArgument);
  CHECK(ends.there().expose(nullptr, 8, kMayRead, {}).status().code() == Code::kInvalidArgument);
  CHECK(ends.there().expose(local, 8, 8, {}).status().code() == Code::kInvalidArgument);
  CHECK(ends.there().expose(local + 4, 8, kMayUpdate, {}).status().code() ==
        Code::kInvalidArgument);
  CHECK(ends.there().conceal(99).status().code() == Code::kNotFound);
  CHECK(unary(*ends.client, "/t/Echo", {}).code == Code::kOk);
}

TEST_CASE_TEMPLATE("one-sided: a region is known before the message that names it", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  for (int round = 0; round < 50; ++round) {
    auto memory = make_ref<Storage>(64, live, kFrom<Way>);
    auto region = ends.here().expose(memory->data(), 64, kMayRead, memory);
    REQUIRE(region.ok());
    auto call = start(*ends.client, "/t/Hang");
    const auto served = Ends<Way>::slot().take();
    CHECK(ends.there().remote(*region).has_value());
    CHECK(ends.here().conceal(*region).ok());
    REQUIRE(send(*call, {out(bytes_of(3))}));
    InMessage message;
    REQUIRE(receive(*served, message));
    CHECK_FALSE(ends.there().remote(*region).has_value());
    call->cancel(Code::kCancelled, "");
  }
  CHECK(live == 0);
}

TEST_CASE_TEMPLATE("one-sided: values of writes with immediate come in order, after their bytes",
                   Way, TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const size_t size = ends.client->link().profile().chunk_bytes + 1;
  const auto [region, memory] = expose(ends, size, kAllRights, live);
  const auto take = [&] {
    uint32_t value = 0;
    while (!ends.there().take_immediate(value))
      REQUIRE(ends.there().wait_immediate(patience()) != Waited::kTimeout);
    return value;
  };
  for (uint32_t round = 0; round < 5; ++round) {
    // One of several pieces, one of none, and a burst.
    const auto bytes = bytes_of(size, round);
    auto large =
        access(Kind::kWriteImmediate, region, 0, const_cast<std::byte*>(bytes.data()), size);
    large.immediate = 1000 + round;
    auto started = ends.here().start(large, {});
    REQUIRE(started.ok());
    CHECK(take() == 1000 + round);
    CHECK(std::equal(bytes.begin(), bytes.end(), memory->data()));
    CHECK(ended(ends.here(), **started).ok());
    std::vector<Ref<Access>> burst;
    for (uint32_t i = 0; i < 100; ++i) {
      auto empty = access(Kind::kWriteImmediate, region, 0, nullptr, 0);
      empty.immediate = i;
      burst.push_back(ends.here().start(empty, {}).value());
    }
    for (uint32_t i = 0; i < 100; ++i) CHECK(take() == i);
    for (const auto& one : burst) CHECK(ended(ends.here(), *one).ok());
  }
  uint32_t value;
  CHECK_FALSE(ends.there().take_immediate(value));
  CHECK(ends.there().wait_immediate(now() + kMillisecond) == Waited::kTimeout);
}

// Two links to one word, each served by a thread of its own: what is before each addition is told
// exactly once.
TEST_CASE_TEMPLATE(
    "one-sided: a write with immediate of several runs is refused, and stores nothing", Way,
    TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const auto [region, memory] = expose(ends, 64, kAllRights, live);
  std::array<std::byte, 64> ones;
  ones.fill(std::byte{1});
  AccessRequest wanted = access(Kind::kWriteImmediate, region, 0, ones.data(), 8);
  wanted.count = 2;
  wanted.stride = wanted.local_stride = 16;
  CHECK(run(ends.here(), wanted).code() == Code::kInvalidArgument);
  meet(ends.there());
  CHECK(std::ranges::all_of(memory->bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE_TEMPLATE("one-sided: two initiators add 10,000 times each, and nothing is lost", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  constexpr uint64_t kTimes = 10'000;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house, another;
  Ends<Way> one(house), two(another);
  auto word = make_ref<Storage>(8, live, kFrom<Way>);
  const uint64_t first = one.there().expose(word->data(), 8, kMayUpdate, word).value();
  const uint64_t second = two.there().expose(word->data(), 8, kMayUpdate, word).value();
  const auto add = [&](AccessPort& side, uint64_t region, std::vector<uint64_t>& before) {
    before.resize(kTimes);
    std::vector<Ref<Access>> started;
    for (uint64_t& slot : before) {
      auto request = access(Kind::kFetchAdd, region, 0, reinterpret_cast<std::byte*>(&slot), 8);
      request.operand = 1;
      started.push_back(side.start(request, {}).value());
      // Some are waited for at once, some in company.
      if (started.size() == 64) {
        for (const auto& access_started : started) REQUIRE(ended(side, *access_started).ok());
        started.clear();
      }
    }
    for (const auto& access_started : started) REQUIRE(ended(side, *access_started).ok());
  };
  arrived(one.here(), first);
  arrived(two.here(), second);
  std::vector<uint64_t> seen, more;
  std::thread other([&] { add(two.here(), second, more); });
  add(one.here(), first, seen);
  other.join();
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  CHECK(std::is_sorted(more.begin(), more.end()));
  seen.insert(seen.end(), more.begin(), more.end());
  CHECK(std::set<uint64_t>(seen.begin(), seen.end()).size() == 2 * kTimes);
  CHECK(*std::max_element(seen.begin(), seen.end()) == 2 * kTimes - 1);
  CHECK(update(one.here(), Kind::kFetchAdd, first, 0, 0) == 2 * kTimes);
}

TEST_CASE_TEMPLATE("one-sided: compare-and-swap makes a lock", Way, TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  constexpr int kTimes = 200;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house, another;
  Ends<Way> one(house), two(another);
  auto words = make_ref<Storage>(16, live, kFrom<Way>);  // the lock, and what it guards
  const auto work = [&](Ends<Way>& ends, uint64_t me) {
    const uint64_t region = ends.there().expose(words->data(), 16, kAllRights, words).value();
    arrived(ends.here(), region);
    for (int i = 0; i < kTimes; ++i) {
      const Nanos deadline = patience();
      while (update(ends.here(), Kind::kCompareSwap, region, 0, me, 0) != 0)
        REQUIRE(now() < deadline);
      uint64_t count = 0;
      const std::span bytes(reinterpret_cast<std::byte*>(&count), sizeof count);
      REQUIRE(read(ends.here(), region, 8, bytes).ok());
      ++count;
      REQUIRE(write(ends.here(), region, 8, bytes).ok());
      REQUIRE(update(ends.here(), Kind::kCompareSwap, region, 0, 0, me) == me);
    }
  };
  std::thread other([&] { work(two, 2); });
  work(one, 1);
  other.join();
  meet(one.there());
  meet(two.there());
  CHECK(words->words()[0] == 0);
  CHECK(words->words()[1] == 2 * kTimes);
}

TEST_CASE_TEMPLATE("one-sided: messages pass between the pieces of large operations", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int>& live = tally();
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  if (!by_runtime(*ends.client)) return;
  constexpr size_t kSize = 128 << 20;
  const auto [region, memory] = expose(ends, kSize, kAllRights, live);
  auto local = make_ref<Storage>(kSize, live);
  int passed = 0;
  // A machine that is busy may finish the large one first now and then.
  for (int i = 0; i < 40 && passed == 0; ++i) {
    const Kind kind = i % 2 == 0 ? Kind::kWrite : Kind::kRead;
    auto started = ends.here().start(access(kind, region, 0, local->data(), kSize), local);
    REQUIRE(started.ok());
    CHECK(unary(*ends.client, "/t/Echo", {out(bytes_of(100))}).code == Code::kOk);
    passed += !(*started)->ended();
    CHECK(ended(ends.here(), **started).ok());
  }
  CHECK(passed > 0);
  (void)memory;
}

TEST_CASE_TEMPLATE("one-sided: the end is told once, and the memory is free by then", Way,
                   TENSORWIRE_ACCESS_WAYS) {
  if (!possible<Way>()) return;
  std::atomic<int> live{0}, exposed{0};
  ToldEnds told;
  OneSidedHouse<Way> house;
  Ends<Way> ends(house);
  const auto [region, memory] = expose(ends, 1 << 20, kAllRights, exposed);
  constexpr int kOperations = 100;
  for (int i = 0; i < kOperations; ++i) {
    auto local = make_ref<Storage>(10'000, live);
    REQUIRE(ends.here()
                .start(access(i % 2 ? Kind::kRead : Kind::kWrite, region,
                              static_cast<uint64_t>(i) * 10'000, local->data(), 10'000),
                       local, told.next())
                .ok());
  }
  // Nobody waits: the background brings them to their end.
  CHECK(eventually([&] { return told.count() == kOperations; }));
  CHECK(live == 0);
  (void)memory;
}

TEST_CASE_TEMPLATE("one-sided: a peer without the feature is never asked", Way,
                   TENSORWIRE_ONE_SIDED_WAYS) {
  if (!possible<Way>()) return;
  OneSidedHouse<Way> house;
  auto connected = meet::connect(runtime(), house.invitation(Way::kName), patience());
  REQUIRE(connected.ok());
  connected->peer.features = 0;
  const Closing link(CallPort::create(runtime(), std::move(connected->transport),
                                      std::move(connected->peer), 1 << 20)
                         .value());
  std::byte byte{};
  const auto exposed = link->access().expose(&byte, 1, kMayRead, {});
  CHECK(exposed.status().code() == Code::kUnimplemented);
  CHECK(exposed.status().details().find("version without") != std::string::npos);
  CHECK(link->access().start(access(Kind::kRead, 1, 0, &byte, 1), {}).status().code() ==
        Code::kUnimplemented);
  CHECK(unary(*link, "/t/Echo", {}).code == Code::kOk);
}

TEST_CASE("one-sided: a peer that does not map memory of an arena is asked by frames, and asks") {
  std::atomic<int>& live = tally();
  OneSidedHouse<ArenaWay> house;
  auto connected = meet::connect(runtime(), house.invitation("shm"), patience());
  REQUIRE(connected.ok());
  connected->peer.features &= ~wire::kMappedBlocks;
  const Closing link(CallPort::create(runtime(), std::move(connected->transport),
                                      std::move(connected->peer), 1 << 20)
                         .value());
  auto call = start(*link, "/t/Hang");
  const auto served = Ends<ArenaWay>::slot().take();
  AccessPort &here = link->access(), &there = served->port().access();
  auto memory = make_ref<Storage>(100, live, From::kArena);
  std::memcpy(memory->data(), bytes_of(100).data(), 100);
  for (auto [owner, reader] : {std::pair{&here, &there}, std::pair{&there, &here}}) {
    const uint64_t region = owner->expose(memory->data(), 100, kMayRead, memory).value();
    arrived(*reader, region);
    CHECK_FALSE(reader->mapped(region));
    std::vector<std::byte> got(100);
    CHECK(read(*reader, region, 0, got).ok());
    CHECK(got == bytes_of(100));
    CHECK(owner->conceal(region).ok());
  }
  call->cancel(Code::kCancelled, "");
}

}  // namespace
}  // namespace tw::test
