// SPDX-License-Identifier: Apache-2.0
// Groups on arrays of devices: Adasum, for which whole arrays go through the host's memory.
#include <doctest/doctest.h>

#include "collective/device_operations.h"
#include "test/collective/device_ranks.h"

namespace tw::test {
namespace {

using collective::StagedPieces;
using collective::Way;

constexpr DataType kAdasumTypes[] = {DataType::kFloat64, DataType::kFloat32, DataType::kFloat16,
                                     DataType::kBfloat16};
TEST_CASE("device arrays: Adasum gives the host's bits, of all types, however ranks are placed") {
  for (const Placement& placement : kPlacements) {
    CAPTURE(placement.fabric);
    DeviceRanks ranks(3);
    as_ranks_of(placement, 3, [&](Group& group) {
      DeviceRank& rank = ranks.of(group);
      std::string wrong;
      uint64_t tried = 0;
      for (const CollectiveKind kind : kReducingKinds)
        for (const DataType type : kAdasumTypes)
          for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1003}}) {
            const bool apart = kind == CollectiveKind::kReduceScatter || type == kAdasumTypes[0];
            const CollectiveCall call{kind, type, ReduceOp::kAdasum, 1, count};
            if (wrong.empty()) wrong = compared(group, rank, call, !apart);
            ++tried;
          }
      if (count_of(group, Way::kDeviceStaged) != tried) wrong += " not staged";
      return wrong;
    });
  }
}

TEST_CASE("device arrays: Adasum of several pieces") {
  for (const int size : {1, 2}) {
    DeviceRanks ranks(size);
    as_ranks_of(kPlacements[0], size, [&](Group& group) {
      std::string wrong;
      for (const CollectiveKind kind : kReducingKinds)
        for (const bool in_place : {false, true}) {
          const CollectiveCall call{kind, DataType::kFloat32, ReduceOp::kAdasum, 0,
                                    (StagedPieces::kSlots + 1) * StagedPieces::kSlotBytes / 4 + 1};
          const bool apart = kind == CollectiveKind::kReduceScatter && size > 1;
          if (wrong.empty()) wrong = compared(group, ranks.of(group), call, in_place && !apart);
        }
      return wrong;
    });
  }
}

TEST_CASE("device arrays: Adasum has no integers, and is told from a sum, small and large") {
  for (const uint64_t count : {uint64_t{8}, uint64_t{StagedPieces::kSlotBytes}}) {
    DeviceRanks ranks(2);
    as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
      DeviceRank& rank = ranks.of(group);
      std::byte* const array = rank.array(bytes_of(group.rank(), count * 4));
      const DevicePlace place = rank.place();
      const auto run = [&](DataType type, ReduceOp op) {
        return group.run({CollectiveKind::kAllReduce, type, op, 0, count}, array, array,
                         within(kLong), 1, &place);
      };
      if (run(DataType::kInt32, ReduceOp::kAdasum).code() != Code::kInvalidArgument)
        return "integers are taken";
      const Status status =
          run(DataType::kFloat32, group.rank() == 0 ? ReduceOp::kAdasum : ReduceOp::kSum);
      const std::string asked =
          "called all_reduce of " + std::to_string(count) + " float32, adasum";
      const bool told =
          status.code() == Code::kAborted && status.details().find(asked) != std::string::npos;
      return told ? "" : "not told: " + status.details();
    });
  }
}

TEST_CASE("device arrays: Adasum of which a rank's device fails ends the group for all ranks") {
  for (const char* function : {"copy", "allocate_pinned", "record", "stream"})
    for (const int others : {0, 1}) {
      CAPTURE(function);
      CAPTURE(others);
      DeviceRanks ranks(2);
      as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
        DeviceRank& rank = ranks.of(group);
        const uint64_t count = StagedPieces::kSlots * StagedPieces::kSlotBytes / 4;
        std::byte* const array = rank.driver.allocate(0, count * 4);
        const DevicePlace place = rank.place();
        if (group.rank() == 1) rank.driver.fail(function, {Code::kInternal, "injected"}, others);
        const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kAdasum,
                                  0, count};
        const Status status = group.run(call, array, array, within(kLong), 1, &place);
        rank.driver.free(array);
        return status.details().find("injected") == std::string::npos ? "told: " + status.details()
                                                                      : "";
      });
      for (const auto& rank : ranks.all()) CHECK(rank->driver.leftovers() == 1);
    }
}

}  // namespace
}  // namespace tw::test
