// SPDX-License-Identifier: Apache-2.0
// Groups on arrays of devices: sums and averages in which each rank has a factor of its own.
#include <doctest/doctest.h>

#include "collective/device_operations.h"
#include "test/collective/device_ranks.h"

namespace tw::test {
namespace {

using collective::DeviceOperations;
using collective::StagedPieces;
using collective::Way;

// Rank 1 has none.
double factor_of(const Group& group) { return group.rank() == 1 ? 1 : 1.0 / (3 + group.rank()); }

TEST_CASE("device arrays: factors, of all types and reductions, staged and in place") {
  DeviceRanks ranks(3);
  as_ranks_of(kPlacements[0], 3, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    std::string wrong;
    uint64_t small = 0, large = 0;
    for (size_t type = 0; type < kDataTypes; ++type)
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage})
        for (const CollectiveKind kind : kReducingKinds) {
          CollectiveCall call{kind, static_cast<DataType>(type), op, 1, 33};
          if (!is_float(call.type)) continue;
          const bool apart = kind == CollectiveKind::kReduceScatter;
          if (wrong.empty()) wrong = compared(group, rank, call, !apart, factor_of(group));
          ++small;
          // A sanitizer, with which megabytes take long, sees nothing new in the others.
          if (kSanitized && (op != ReduceOp::kSum || call.type != DataType::kBfloat16)) continue;
          call.count = DeviceOperations::kInPlaceBytes / size_of(call.type);
          if (wrong.empty()) wrong = compared(group, rank, call, false, factor_of(group));
          ++large;
        }
    if (count_of(group, Way::kDeviceStaged) != small) wrong += " not staged";
    if (count_of(group, Way::kDeviceInPlace) != large) wrong += " not in place";
    return small == 6 * 2 * 3 ? wrong : wrong + " not all tried";
  });
}

TEST_CASE("device arrays: factors, in several pieces, however ranks are placed") {
  for (const Placement& placement : kPlacements) {
    CAPTURE(placement.fabric);
    DeviceRanks ranks(3);
    as_ranks_of(placement, 3, [&](Group& group) {
      DeviceRank& rank = ranks.of(group);
      // What one rank cannot open is staged, by all ranks, and nobody tries again.
      if (group.rank() == 0)
        rank.driver.fail("import_memory", {Code::kFailedPrecondition, "not between these"});
      std::string wrong;
      for (const CollectiveKind kind : kReducingKinds) {
        const uint64_t share = StagedPieces::kSlotBytes / 4 + 5;
        const bool even = kind == CollectiveKind::kReduceScatter;
        const CollectiveCall call{kind, DataType::kFloat32, ReduceOp::kSum, 2,
                                  even ? share : (StagedPieces::kSlots + 1) * share};
        if (wrong.empty()) wrong = compared(group, rank, call, false, factor_of(group));
      }
      if (count_of(group, Way::kDeviceStaged) != 3) wrong += " not staged";
      return wrong;
    });
  }
}

TEST_CASE("device arrays: factors in a group of one, of one piece and of several") {
  DeviceRanks ranks(1);
  as_ranks_of(kPlacements[0], 1, [&](Group& group) {
    std::string wrong;
    for (const uint64_t count : {uint64_t{0}, uint64_t{7}, uint64_t{4 * StagedPieces::kSlotBytes}})
      for (const CollectiveKind kind : kReducingKinds)
        for (const bool in_place : {false, true})
          if (wrong.empty())
            wrong = compared(group, ranks.of(group),
                             {kind, DataType::kBfloat16, ReduceOp::kSum, 0, count}, in_place, 0.3);
    return wrong;
  });
}

TEST_CASE("device arrays: factors where there are none are refused, and nothing is sent") {
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
    DeviceRank& rank = ranks.of(group);
    const Bytes values = bytes_of(group.rank(), 64);
    std::byte* const array = rank.array(values);
    const DevicePlace place = rank.place();
    const CollectiveCall calls[] = {
        {CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kMax, 0, 2},
        {CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kAdasum, 0, 2},
        {CollectiveKind::kAllReduce, DataType::kInt32, ReduceOp::kSum, 0, 2},
        {CollectiveKind::kBroadcast, DataType::kFloat32, ReduceOp::kSum, 0, 2},
    };
    // The other rank does not wait for what this one has tried.
    if (group.rank() == 0)
      for (const CollectiveCall& call : calls) {
        const Status status = group.run(call, array, array, within(kLong), 0.5, &place);
        if (status.code() != Code::kInvalidArgument) return call.text() + " is taken";
        if (status.details().find("sums and averages of floats have a factor") == std::string::npos)
          return status.details();
      }
    std::string wrong = compared(
        group, rank, {CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0, 99}, true);
    return rank.read(array, 64) == values ? wrong : wrong + " written";
  });
}

}  // namespace
}  // namespace tw::test
