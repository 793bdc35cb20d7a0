// SPDX-License-Identifier: Apache-2.0
// Groups on arrays of devices.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "collective/device_operations.h"
#include "collective/device_place.h"
#include "collective/peer_allocations.h"
#include "collective/wire.h"
#include "test/collective/device_ranks.h"

namespace tw::test {
namespace {

using collective::DeviceOperations;
using collective::Fabric;
using collective::place_of;
using collective::StagedPieces;

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduce,        CollectiveKind::kBroadcast,
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kGather,
    CollectiveKind::kScatter,
};
bool may_be_in_place(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce;
}

TEST_CASE(
    "device arrays: each operation gives what it gives on the host, however ranks are "
    "placed") {
  for (const Placement& placement : kPlacements) {
    CAPTURE(placement.fabric);
    DeviceRanks ranks(3);
    as_ranks_of(placement, 3, [&](Group& group) {
      DeviceRank& rank = ranks.of(group);
      std::string wrong;
      for (const CollectiveKind kind : kKinds)
        for (const uint64_t count : {uint64_t{1}, uint64_t{1000}, uint64_t{400'001}})
          for (const bool in_place : {false, true}) {
            if (in_place && !may_be_in_place(kind)) continue;
            const CollectiveCall call{kind, DataType::kFloat32, ReduceOp::kSum, 1, count};
            if (wrong.empty()) wrong = compared(group, rank, call, in_place);
          }
      const bool shared = std::string(group.fabric()) == "shared memory";
      // Two operations are in place, or apart; the large ones are above kInPlaceBytes.
      const uint64_t in_place = count_of(group, collective::Way::kDeviceInPlace);
      const uint64_t staged = count_of(group, collective::Way::kDeviceStaged);
      if (wrong.empty() && (in_place != (shared ? 9 : 0) || in_place + staged != 27))
        wrong = std::to_string(in_place) + " in place, " + std::to_string(staged) + " staged";
      return wrong;
    });
  }
}

TEST_CASE("device arrays: several pieces, staged, of all operations") {
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    // What one rank cannot open is staged, by all ranks, and nobody tries again.
    if (group.rank() == 0)
      rank.driver.fail("import_memory", {Code::kFailedPrecondition, "not between these"});
    std::string wrong = compared(
        group, rank,
        {CollectiveKind::kAllReduce, DataType::kInt8, ReduceOp::kMax, 0, uint64_t{1} << 20}, true);
    const int imports = rank.driver.calls("import_memory");
    for (const CollectiveKind kind : kKinds) {
      const uint64_t count = StagedPieces::kSlots * StagedPieces::kSlotBytes / 4 / 3 + 3;
      const CollectiveCall call{kind, DataType::kInt32, ReduceOp::kSum, 0, count};
      if (wrong.empty()) wrong = compared(group, rank, call, false);
    }
    const CollectiveCall large{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kMin, 0,
                               (StagedPieces::kSlots + 1) * StagedPieces::kSlotBytes / 4};
    if (wrong.empty()) wrong = compared(group, rank, large, true);
    if (count_of(group, collective::Way::kDeviceInPlace) != 0) wrong = "it went in place";
    if (rank.driver.calls("import_memory") != imports) wrong = "it was tried again";
    return wrong;
  });
}

TEST_CASE("device arrays: one that cannot be exported is staged, and the next one is not") {
  constexpr size_t kBytes = DeviceOperations::kInPlaceBytes;
  const auto call = [](CollectiveKind kind) {
    return CollectiveCall{kind, DataType::kUint8, ReduceOp::kMax, 1, kBytes};
  };
  DeviceRanks ranks(3);
  as_ranks_of(kPlacements[0], 3, [&](Group& group) -> std::string {
    DeviceRank& rank = ranks.of(group);
    const DevicePlace place = rank.place();
    std::byte* const hidden = rank.array(bytes_of(group.rank(), kBytes), group.rank() != 0);
    std::string wrong;
    const auto in_place = [&](CollectiveKind kind, std::byte* in, std::byte* out, uint64_t wanted) {
      Status status = group.run(call(kind), in, out, within(kLong), 1, &place);
      if (!status.ok()) wrong += status.details();
      if (count_of(group, collective::Way::kDeviceInPlace) != wanted)
        wrong += std::string(name_of(kind)) + " went another way";
    };
    in_place(CollectiveKind::kAllReduce, hidden, hidden, 0);
    if (rank.driver.calls("import_memory") != 0) wrong += " opened in vain";
    // Rank 0 only takes here.
    in_place(CollectiveKind::kBroadcast, nullptr, hidden, 1);
    if (wrong.empty()) wrong = compared(group, rank, call(CollectiveKind::kAllReduce), true);
    if (count_of(group, collective::Way::kDeviceInPlace) != 2) wrong += " staged again";
    return wrong;
  });
}

TEST_CASE("device arrays: all types and reductions, staged and in place") {
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    std::string wrong;
    uint64_t tried = 0;
    for (size_t type = 0; type < kDataTypes; ++type)
      for (size_t op = 0; op < kReduceOps; ++op) {
        CollectiveCall call{CollectiveKind::kAllReduce, static_cast<DataType>(type),
                            static_cast<ReduceOp>(op), 0, 33};
        if (!reducible(call.type, call.op) || call.op == ReduceOp::kAdasum) continue;
        // A sanitizer, with which megabytes take long, sees nothing new in the others.
        if (kSanitized && call.op != ReduceOp::kSum && call.type != DataType::kBfloat16) continue;
        ++tried;
        if (wrong.empty()) wrong = compared(group, rank, call, true);
        call.kind = CollectiveKind::kReduceScatter;
        call.count = DeviceOperations::kInPlaceBytes / size_of(call.type);
        if (wrong.empty()) wrong = compared(group, rank, call, false);
      }
    if (!kSanitized && tried != 101) wrong += " not all tried";
    if (count_of(group, collective::Way::kDeviceInPlace) != tried) wrong += " not all in place";
    return wrong;
  });
}

TEST_CASE("device arrays: all_to_all with uneven runs, of several pieces") {
  constexpr int kRanks = 3;
  DeviceRanks ranks(kRanks);
  const auto given = [](int from, int to) {
    return static_cast<size_t>(from + 1) * 300'000 + static_cast<size_t>(to) * 1'000'000;
  };
  as_ranks_of(kPlacements[0], kRanks, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    std::vector<Fabric::Run> gives, takes;
    size_t in_size = 0, out_size = 0;
    Bytes expected;
    for (int other = 0; other < kRanks; ++other) {
      gives.push_back({in_size, given(group.rank(), other)});
      takes.push_back({out_size, given(other, group.rank())});
      in_size += gives.back().size;
      out_size += takes.back().size;
      const Bytes theirs = bytes_of(other, given(other, group.rank()));
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    Bytes in;
    for (int other = 0; other < kRanks; ++other) {
      const Bytes mine = bytes_of(group.rank(), given(group.rank(), other));
      in.insert(in.end(), mine.begin(), mine.end());
    }
    std::byte* const from = rank.array(in);
    std::byte* const to = rank.driver.allocate(0, out_size);
    const DevicePlace place = rank.place();
    Status status = group.exchange(
        {CollectiveKind::kAllToAll, DataType::kUint8, ReduceOp::kSum, 0, CollectiveCall::kUneven},
        from, gives, to, takes, within(kLong), 1, &place);
    if (!status.ok()) return status.details();
    return rank.read(to, out_size) == expected ? std::string() : std::string("wrong");
  });
}

TEST_CASE("device arrays: a group of one copies, and a group may change its device") {
  DeviceRanks single(1);
  as_ranks_of(kPlacements[0], 1, [&](Group& group) {
    const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                              1000};
    return compared(group, single.of(group), call, false);
  });
  DeviceRanks ranks(2), others(2, 1);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) {
    std::string wrong;
    const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                              1000};
    for (DeviceRanks* each : {&ranks, &others, &ranks})
      if (wrong.empty()) wrong = compared(group, each->of(group), call, true);
    return wrong;
  });
}

TEST_CASE("device arrays: where they lie is asked, and told when it is mixed") {
  FakeHost host;
  FakeDriver driver(host, 2);
  std::byte* const in = driver.allocate(1, 1 << 16);
  std::byte* const out = driver.allocate(1, 1 << 16);
  std::byte* const other = driver.allocate(0, 16);
  std::byte local[8];
  for (int i = 0; i < 100; ++i) {
    const auto place = place_of(driver, in + i, out + 8 * i, device::Stream{7});
    REQUIRE(place);
    REQUIRE(*place);
    CHECK((*place)->device == 1);
    CHECK((*place)->stream == device::Stream{7});
  }
  CHECK(driver.calls("allocation_of") == 200);
  CHECK((*place_of(driver, in, in + 8, device::Stream{}))->device == 1);  // in one allocation
  CHECK(driver.calls("allocation_of") == 201);
  const device::Stream none{};
  CHECK_FALSE(*place_of(driver, local, nullptr, none));
  CHECK_FALSE(*place_of(driver, nullptr, nullptr, none));
  CHECK((*place_of(driver, nullptr, other, none))->device == 0);
  const auto mixed = place_of(driver, local, in, none);
  REQUIRE(!mixed);
  CHECK(mixed.status().code() == Code::kInvalidArgument);
  CHECK(mixed.status().details() ==
        "one array of the operation lies in the host's memory, the other one on device 1");
  CHECK(place_of(driver, in, other, none).status().code() == Code::kInvalidArgument);
}

TEST_CASE("device arrays: who names their device is believed, if there is such a one") {
  FakeHost host;
  FakeDriver driver(host, 2);
  std::byte* const in = driver.allocate(1, 16);
  const device::Stream stream{7};
  for (const int device : {0, 1}) {
    const auto place = place_of(driver, device, in, nullptr, stream);
    REQUIRE(place);
    REQUIRE(*place);
    CHECK((*place)->driver == &driver);
    CHECK((*place)->device == device);
    CHECK((*place)->stream == stream);
  }
  CHECK(driver.calls("allocation_of") == 0);
  const auto none = place_of(driver, 2, in, nullptr, stream);
  REQUIRE(!none);
  CHECK(none.status().code() == Code::kInvalidArgument);
  CHECK(none.status().details() == "there is no device 2 among 2");
  CHECK((*place_of(driver, -1, in, nullptr, stream))->device == 1);  // the driver is asked
  CHECK(driver.calls("allocation_of") == 1);
}

// All ranks have ones, and rank 1 has its at another place each time; says what is wrong.
std::string of_ones(Group& group, DeviceRank& rank, std::byte* array) {
  constexpr size_t kBytes = DeviceOperations::kInPlaceBytes;
  const DevicePlace place = rank.place();
  const Bytes ones(kBytes, std::byte{1});
  rank.driver.write(array, ones.data(), kBytes);
  Status status =
      group.run({CollectiveKind::kAllReduce, DataType::kUint8, ReduceOp::kSum, 0, kBytes}, array,
                array, within(kLong), 1, &place);
  if (!status.ok()) return status.details();
  const auto sum = static_cast<std::byte>(group.size());
  return rank.read(array, kBytes) == Bytes(kBytes, sum) ? "" : "wrong";
}

TEST_CASE("device arrays: what is open of other ranks stays so until its owner has freed it") {
  constexpr size_t kBytes = DeviceOperations::kInPlaceBytes;
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
    FakeDriver& driver = ranks.of(group).driver;
    const auto run = [&](std::byte* array) { return of_ones(group, ranks.of(group), array); };
    const auto imports = [&] { return driver.calls("import_memory"); };
    std::byte* const array = driver.allocate(0, kBytes);
    std::string wrong;
    for (int i = 0; i < 5 && wrong.empty(); ++i) wrong = run(array);
    if (!wrong.empty() || imports() != 1) return wrong + ": opened more than once";
    const size_t before = driver.leftovers();
    driver.free(array);
    // At the same address.
    std::byte* const next = driver.allocate(0, kBytes);
    if (next != array) return "another address";
    wrong = run(next);
    if (!wrong.empty() || imports() != 2) return wrong + ": not opened anew";
    return driver.leftovers() == before ? "" : "the old one is still open";
  });
}

TEST_CASE("device arrays: the driver describes an allocation once, until it is freed") {
  constexpr size_t kBytes = DeviceOperations::kInPlaceBytes;
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
    DeviceRank& rank = ranks.of(group);
    FakeDriver& driver = rank.driver;
    std::string wrong;
    // What is staged needs no description: the caller has said which device it is.
    const CollectiveCall small{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                               9};
    for (int i = 0; i < 5 && wrong.empty(); ++i) wrong = compared(group, rank, small, true);
    if (driver.calls("allocation_of") + driver.calls("allocation_id") != 0) wrong += " asked";
    // In place it is one of this rank's allocation, and one of what is open of the other rank's.
    // Then only its number is asked for, to see that it is still there.
    std::byte* array = driver.allocate(0, 2 * kBytes);
    for (int round = 1; round <= 2 && wrong.empty(); ++round) {
      for (size_t i = 0; i < 10 && wrong.empty(); ++i)
        wrong = of_ones(group, rank, array + i * kBytes / 10);
      if (driver.calls("allocation_of") != 2 * round) wrong += " described again";
      if (driver.calls("export_memory") != round) wrong += " exported again";
      // At the first operation nothing is known.
      if (driver.calls("allocation_id") != 10 * round - 1) wrong += " not looked after";
      driver.free(array);
      if (driver.allocate(0, 2 * kBytes) != array) wrong += " another address";
    }
    return wrong;
  });
}

TEST_CASE("device arrays: what is open of other ranks and was not used for long is closed") {
  constexpr size_t kBytes = DeviceOperations::kInPlaceBytes;
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
    FakeDriver& driver = ranks.of(group).driver;
    const auto run = [&](std::byte* array) { return of_ones(group, ranks.of(group), array); };
    std::byte* const once = driver.allocate(0, kBytes);
    std::byte* const often = driver.allocate(0, kBytes);
    std::string wrong = run(once);
    const size_t before = driver.leftovers();
    for (uint64_t i = 0; i < collective::kKeptOperations && wrong.empty(); ++i) wrong = run(often);
    if (driver.leftovers() != before) wrong += " still open";
    if (wrong.empty()) wrong = run(once);
    return driver.calls("import_memory") == 3 ? wrong : wrong + " not opened anew";
  });
}

TEST_CASE("device arrays: what ranks say of their arrays is decoded as it was, or refused") {
  collective::DeviceOffer offer;
  offer.call = {CollectiveKind::kReduce, DataType::kBfloat16, ReduceOp::kMax, 3, 77};
  offer.in.offered = true;
  offer.generation = 5;
  offer.factor = -0.3;
  offer.longest = 1234;
  offer.shares = ~uint64_t{0};
  for (size_t i = 0; i < offer.in.handle.size(); ++i)
    offer.in.handle[i] = static_cast<std::byte>(i);
  offer.in.offset = uint64_t{1} << 40;
  offer.out.handle[63] = std::byte{9};
  const auto bytes = encode_offer(offer);
  const auto decoded = collective::decode_offer(bytes);
  REQUIRE(decoded);
  CHECK(*decoded == offer);
  CHECK(collective::decode_offer(std::span(bytes).first(bytes.size() - 1)).status().code() ==
        Code::kInternal);
  // A sequence, an operation that there is none of, and an array that is offered twice.
  for (const size_t at : {0, 16, 32, 112}) {
    auto wrong = bytes;
    wrong[at] = std::byte{200};
    CHECK(collective::decode_offer(wrong).status().code() == Code::kInternal);
  }
}

}  // namespace
}  // namespace tw::test
