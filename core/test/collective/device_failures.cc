// SPDX-License-Identifier: Apache-2.0
// Groups on arrays of devices, when something fails.
#include <doctest/doctest.h>

#include <atomic>
#include <new>

#include "collective/device_operations.h"
#include "test/collective/device_ranks.h"

namespace tw::test {
namespace {

using collective::DeviceOperations;
using collective::StagedPieces;

// All ranks fail when one does, and nothing is left of it. Each frees its array at once.
void fails_everywhere(const std::string& function, int others, uint64_t count, bool in_place,
                      Code code) {
  CAPTURE(function);
  CAPTURE(others);
  DeviceRanks ranks(3);
  as_ranks_of(kPlacements[0], 3, [&](Group& group) -> std::string {
    DeviceRank& rank = ranks.of(group);
    std::byte* const array = rank.driver.allocate(0, count * 4, in_place);
    const DevicePlace place = rank.place();
    if (group.rank() == 1) rank.driver.fail(function, {code, "injected into " + function}, others);
    const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                              count};
    Status status = group.run(call, array, array, within(kLong), 1, &place);
    const bool goes_on = group.run(call, array, array, within(kLong), 1, &place).ok();
    const bool reached = group.rank() != 1 || rank.driver.health().ok() == (function != "stream");
    rank.driver.free(array);
    if (status.ok()) return "it went well";
    if (group.rank() == 1 && status.code() != code) return "rank 1 has " + status.details();
    if (status.details().find("injected into " + function) == std::string::npos)
      return status.details();
    return goes_on ? "it goes on" : reached ? "" : "memory was used that had been given back";
  });
  for (const auto& rank : ranks.all()) {
    CHECK(rank->driver.leftovers() == 1);  // the program's stream
    if (rank != ranks.all()[1]) CHECK(rank->driver.health().ok());
  }
}

TEST_CASE("device arrays: a driver that fails ends the group for all ranks") {
  constexpr uint64_t kSmall = 100,
                     kSeveral = StagedPieces::kSlots * StagedPieces::kSlotBytes / 4 + 1;
  const Code none = Code::kResourceExhausted, broken = Code::kInternal;
  fails_everywhere("create_stream", 0, kSmall, true, none);
  fails_everywhere("create_stream", 1, kSmall, true, none);
  fails_everywhere("create_event", 0, kSmall, true, none);
  fails_everywhere("allocate_pinned", 0, kSmall, true, none);
  fails_everywhere("allocate_pinned", 2, kSeveral, false, none);
  fails_everywhere("record", 0, kSmall, true, broken);
  fails_everywhere("record", 4, kSeveral, false, broken);
  fails_everywhere("record", 1, kSeveral, true, broken);
  fails_everywhere("idle", 0, kSmall, true, broken);
  fails_everywhere("happened", 0, kSmall, true, broken);
  fails_everywhere("copy", 0, kSmall, true, broken);
  fails_everywhere("copy", 1, kSeveral, false, broken);
  fails_everywhere("copy", 4, kSeveral, false, broken);
  fails_everywhere("launch", 0, kSeveral, true, broken);
  for (const int others : {0, 1, 2, 3, 6})
    fails_everywhere("stream", others, kSeveral, false, broken);
  for (const int others : {0, 1, 2, 3, 4})
    fails_everywhere("stream", others, kSeveral, true, broken);
}

// The second step finds no memory, while the slot of the first one has work in its stream.
TEST_CASE("device arrays: copies are over when a step has thrown") {
  MemoryStore store;
  const auto group = Group::make(store, {0, 1}, within(kLong));
  REQUIRE(group.ok());
  FakeHost host;
  constexpr unsigned kDelay = 20'000;  // microseconds
  FakeDriver driver(host, 1, kDelay);
  constexpr size_t kPieces = 5, kBytes = 64, kSize = kPieces * kBytes;
  StagedPieces staged(driver, 0, (*group)->members());
  std::byte *const in = driver.allocate(0, kSize), *const out = driver.allocate(0, kSize);
  const auto step = [](uint64_t piece, const StagedPieces::OnHost&) -> Status {
    if (piece == 1) throw std::bad_alloc();
    return {};
  };
  CHECK_THROWS_AS((void)staged.run({in, {{0, kSize}}}, {out, {{0, kSize}}}, kPieces, kBytes, true,
                                   step, within(kLong)),
                  std::bad_alloc);
  driver.free(in);
  driver.free(out);
  CHECK(driver.leftovers() == 0);
  CHECK(driver.health().ok());
}

TEST_CASE("device arrays: what is needed to read in place is missing on one rank: all stage") {
  for (const char* function : {"export_memory", "import_memory", "load", "allocation_of"}) {
    CAPTURE(function);
    DeviceRanks ranks(3);
    as_ranks_of(kPlacements[0], 3, [&](Group& group) -> std::string {
      DeviceRank& rank = ranks.of(group);
      if (group.rank() == 2) rank.driver.fail(function, {Code::kFailedPrecondition, "missing"});
      const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                                DeviceOperations::kInPlaceBytes};
      std::string wrong = compared(group, rank, call, false);
      if (wrong.empty() && count_of(group, collective::Way::kDeviceStaged) != 1) wrong = "in place";
      return wrong;
    });
  }
}

TEST_CASE("device arrays: a stream that does not get on ends by its deadline, or by interruption") {
  static std::atomic<bool> interrupted;
  for (const bool interrupts : {false, true}) {
    CAPTURE(interrupts);
    interrupted = false;
    DeviceRanks ranks(2);
    as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
      DeviceRank& rank = ranks.of(group);
      std::byte* const array = rank.array(bytes_of(0, 400));
      const DevicePlace place = rank.place();
      const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                                100};
      Wait wait = within(kLong);
      if (group.rank() == 0) {
        rank.driver.hold(rank.stream, true);
        rank.driver.write_later(rank.stream, array, bytes_of(0, 400));
        if (interrupts) {
          interrupted = true;
          wait.interrupted = [](void*) { return int{interrupted}; };
        } else {
          wait = within(10 * kMillisecond);
        }
      }
      Status status = group.run(call, array, array, wait, 1, &place);
      rank.driver.hold(rank.stream, false);
      const Code expected = interrupts ? Code::kCancelled : Code::kDeadlineExceeded;
      if (group.rank() == 0 && status.code() != expected) return "rank 0: " + status.details();
      if (group.rank() == 0 && !interrupts &&
          status.details().find("device 0 of rank 0") == std::string::npos)
        return status.details();
      return status.ok() ? "it went well" : "";
    });
  }
}

TEST_CASE("device arrays: ranks that disagree are told who called what, in place and staged") {
  for (const bool exportable : {false, true}) {
    DeviceRanks ranks(2);
    as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
      DeviceRank& rank = ranks.of(group);
      // The pieces would be the same at first.
      const uint64_t count = StagedPieces::kSlotBytes * (group.rank() == 0 ? 4 : 6) / 4;
      std::byte* const array = rank.array(bytes_of(0, count * 4), exportable);
      const DevicePlace place = rank.place();
      const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                                count};
      Status status = group.run(call, array, array, within(kLong), 1, &place);
      if (status.code() != Code::kAborted) return "no disagreement: " + status.details();
      for (const char* each : {"2097152 float32", "3145728 float32"})
        if (status.details().find(each) == std::string::npos) return status.details();
      return "";
    });
  }
}

TEST_CASE("device arrays: an offer of less memory than the operation needs is not read") {
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
    DeviceRank& rank = ranks.of(group);
    const uint64_t count = DeviceOperations::kInPlaceBytes;
    // Rank 1's array lies so that it ends with its allocation, less one element.
    std::byte* const array = rank.array(bytes_of(0, count - (group.rank() == 1 ? 1 : 0)));
    const DevicePlace place = rank.place();
    const CollectiveCall call{CollectiveKind::kBroadcast, DataType::kUint8, ReduceOp::kSum, 1,
                              count};
    Status status = group.run(call, nullptr, array, within(kLong), 1, &place);
    // Staged, the owner itself finds out.
    if (status.ok()) return "it was read";
    return rank.driver.calls("import_memory") == (group.rank() == 0 ? 1 : 0) ? "" : "imports";
  });
}

}  // namespace
}  // namespace tw::test
