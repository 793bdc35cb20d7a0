// SPDX-License-Identifier: Apache-2.0
// Groups on arrays of devices: operations in which each rank gives, or gets, a number of elements
// of its own.
#include <doctest/doctest.h>

#include <algorithm>

#include "collective/device_operations.h"
#include "test/collective/device_ranks.h"

namespace tw::test {
namespace {

using collective::DeviceOperations;
using collective::StagedPieces;
using collective::Way;
using Run = Fabric::Run;
using Runs = std::vector<Run>;

// Rank 1 has none, and the others more the higher they are.
uint64_t share_of(int rank, uint64_t block) {
  return rank == 1 ? 0 : static_cast<uint64_t>(rank + 1) * block + static_cast<uint64_t>(rank);
}

// What a rank gives to an operation, and where it takes.
struct Uneven {
  Runs gives, takes;
  size_t in = 0, out = 0;  // bytes
};
Uneven uneven_of(const CollectiveCall& call, const Group& group, uint64_t block, size_t gap = 0) {
  const auto ranks = static_cast<size_t>(group.size()), root = static_cast<size_t>(call.root);
  Runs all;
  size_t end = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    all.push_back({end, share_of(rank, block) * size_of(call.type)});
    end += all.back().size + gap;
  }
  const size_t mine = all[static_cast<size_t>(group.rank())].size;
  const Runs nothing(ranks);
  Runs to_root = nothing;
  to_root[root] = {0, mine};
  const bool is_root = group.rank() == call.root;
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      return {Runs(ranks, {0, mine}), all, mine, end};
    case CollectiveKind::kGather:
      return {to_root, is_root ? all : nothing, mine, is_root ? end : 0};
    case CollectiveKind::kScatter:
      return {is_root ? all : nothing, to_root, is_root ? end : 0, mine};
    default:
      return {all, {}, end, mine};
  }
}

CollectiveCall uneven(CollectiveKind kind, DataType type = DataType::kFloat32,
                      ReduceOp op = ReduceOp::kSum) {
  return {kind, type, op, has_root(kind) ? 2 : 0, CollectiveCall::kUneven};
}

std::string compared(Group& group, DeviceRank& rank, const CollectiveCall& call,
                     const Uneven& asked, double factor = 1) {
  const Bytes in = bytes_of(group.rank(), asked.in);
  Bytes out = bytes_of(100 + group.rank(), asked.out);
  std::byte* const device_in = in.empty() ? nullptr : rank.array(in);
  std::byte* const device_out = out.empty() ? nullptr : rank.array(out);
  Status status =
      group.exchange(call, in.data(), asked.gives, out.data(), asked.takes, within(kLong), factor);
  if (!status.ok()) return "on the host: " + status.details();
  const DevicePlace place = rank.place();
  status = group.exchange(call, device_in, asked.gives, device_out, asked.takes, within(kLong),
                          factor, &place);
  if (!status.ok()) return call.text() + ": " + status.details();
  const bool same = out.empty() || rank.read(device_out, out.size()) == out;
  const bool kept = in.empty() || rank.read(device_in, in.size()) == in;
  if (device_in) rank.driver.free(device_in);
  if (device_out) rank.driver.free(device_out);
  return (same ? "" : call.text() + " is wrong") + std::string(kept ? "" : ": in was written");
}

constexpr CollectiveKind kUnevenKinds[] = {CollectiveKind::kAllGather,
                                           CollectiveKind::kReduceScatter, CollectiveKind::kGather,
                                           CollectiveKind::kScatter};

TEST_CASE("device arrays: uneven shares give what they give on the host, however placed") {
  for (const Placement& placement : kPlacements) {
    CAPTURE(placement.fabric);
    DeviceRanks ranks(3);
    as_ranks_of(placement, 3, [&](Group& group) {
      DeviceRank& rank = ranks.of(group);
      std::string wrong;
      for (const CollectiveKind kind : kUnevenKinds)
        for (const uint64_t block : {uint64_t{0}, uint64_t{5}, uint64_t{150'000}}) {
          const CollectiveCall call = uneven(kind);
          if (wrong.empty()) wrong = compared(group, rank, call, uneven_of(call, group, block));
        }
      // The last rank's share of the large ones is above kInPlaceBytes.
      const bool shared = std::string(group.fabric()) == "shared memory";
      const uint64_t in_place = count_of(group, Way::kDeviceInPlace);
      const uint64_t staged = count_of(group, Way::kDeviceStaged);
      if (wrong.empty() && (in_place != (shared ? 2 : 0) || in_place + staged != 12))
        wrong = std::to_string(in_place) + " in place, " + std::to_string(staged) + " staged";
      return wrong;
    });
  }
}

TEST_CASE("device arrays: uneven shares of all types and reductions, staged and in place") {
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    std::string wrong;
    uint64_t tried = 0, adasums = 0;
    for (size_t type = 0; type < kDataTypes; ++type)
      for (size_t op = 0; op < kReduceOps; ++op) {
        const auto call = uneven(CollectiveKind::kReduceScatter, static_cast<DataType>(type),
                                 static_cast<ReduceOp>(op));
        // `bytes_of` are no bools.
        if (!reducible(call.type, call.op) || call.type == DataType::kBool) continue;
        if (kSanitized && op != 0 && call.type != DataType::kBfloat16) continue;
        const uint64_t large = DeviceOperations::kInPlaceBytes / size_of(call.type);
        const bool sums = call.op == ReduceOp::kSum || call.op == ReduceOp::kAverage;
        const double factor = sums && is_float(call.type) ? 0.7 + group.rank() : 1;
        for (const uint64_t block : {uint64_t{9}, large})
          if (wrong.empty())
            wrong = compared(group, rank, call, uneven_of(call, group, block), factor);
        ++tried;
        adasums += call.op == ReduceOp::kAdasum;
      }
    if (count_of(group, Way::kDeviceInPlace) != tried - adasums) wrong += " not all in place";
    if (count_of(group, Way::kDeviceStaged) != tried + adasums) wrong += " not all staged";
    return wrong;
  });
}

TEST_CASE("device arrays: uneven shares of several pieces, staged") {
  DeviceRanks ranks(3);
  as_ranks_of(kPlacements[0], 3, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    // Nothing that all ranks can open: then nobody tries again.
    if (group.rank() == 0)
      rank.driver.fail("import_memory", {Code::kFailedPrecondition, "not between these"});
    std::string wrong;
    for (const CollectiveKind kind : kUnevenKinds) {
      const CollectiveCall call = uneven(kind);
      const Uneven asked = uneven_of(call, group, StagedPieces::kSlotBytes / 4);
      if (wrong.empty()) wrong = compared(group, rank, call, asked);
    }
    if (count_of(group, Way::kDeviceInPlace) != 0) wrong += " in place";
    return wrong;
  });
}

TEST_CASE("device arrays: uneven shares that lie elsewhere on one rank are staged by all") {
  DeviceRanks ranks(3);
  as_ranks_of(kPlacements[0], 3, [&](Group& group) {
    DeviceRank& rank = ranks.of(group);
    const CollectiveCall call = uneven(CollectiveKind::kReduceScatter);
    const uint64_t block = DeviceOperations::kInPlaceBytes / 4;
    std::string wrong =
        compared(group, rank, call, uneven_of(call, group, block, group.rank() == 2 ? 12 : 0));
    if (count_of(group, Way::kDeviceInPlace) != 0) wrong += " in place";
    // Where a rank's own share goes to is its own affair.
    const CollectiveCall gather = uneven(CollectiveKind::kAllGather);
    const Uneven apart = uneven_of(gather, group, block, group.rank() == 2 ? 12 : 0);
    if (wrong.empty()) wrong = compared(group, rank, gather, apart);
    if (count_of(group, Way::kDeviceInPlace) != 1) wrong += " not in place";
    return wrong;
  });
}

TEST_CASE("device arrays: uneven shares in a group of one") {
  DeviceRanks ranks(1);
  as_ranks_of(kPlacements[0], 1, [&](Group& group) {
    std::string wrong;
    for (const CollectiveKind kind : kUnevenKinds) {
      CollectiveCall call = uneven(kind);
      call.root = 0;
      const double factor = kind == CollectiveKind::kReduceScatter ? 0.3 : 1;
      if (wrong.empty())
        wrong = compared(group, ranks.of(group), call, uneven_of(call, group, 100), factor);
    }
    return wrong;
  });
}

TEST_CASE("device arrays: uneven shares of which ranks think differently are told") {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
    for (const size_t size : {size_t{16}, DeviceOperations::kInPlaceBytes}) {
      CAPTURE(name_of(kind));
      CAPTURE(size);
      DeviceRanks ranks(2);
      as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
        DeviceRank& rank = ranks.of(group);
        const bool gathers = kind == CollectiveKind::kAllGather;
        const size_t wrong = group.rank() == 0 ? 8 : 0;
        const Runs gives{{0, size}, {gathers ? 0 : size, gathers ? size : size + wrong}};
        Runs takes{{0, size}, {size, size + wrong}};
        if (!gathers) takes.clear();
        std::byte* const in = rank.array(bytes_of(group.rank(), 2 * size + 8));
        std::byte* const out = rank.array(bytes_of(group.rank(), 2 * size + 8));
        const DevicePlace place = rank.place();
        const Status status =
            group.exchange(uneven(kind), in, gives, out, takes, within(kLong), 1, &place);
        const bool told = status.details().find("bytes to rank") != std::string::npos;
        const bool done = status.ok() && group.rank() == (gathers ? 1 : 0);
        return told || done ? "" : "not told: " + status.details();
      });
    }
}

TEST_CASE("device arrays: ranks that call different uneven operations are told who called what") {
  DeviceRanks ranks(2);
  as_ranks_of(kPlacements[0], 2, [&](Group& group) -> std::string {
    DeviceRank& rank = ranks.of(group);
    const DataType type = group.rank() == 0 ? DataType::kFloat32 : DataType::kInt32;
    const CollectiveCall call = uneven(CollectiveKind::kAllGather, type);
    const Uneven asked = uneven_of(call, group, 4);
    std::byte* const in = rank.array(bytes_of(0, 64));
    std::byte* const out = rank.array(bytes_of(0, 64));
    const DevicePlace place = rank.place();
    const Status status =
        group.exchange(call, in, asked.gives, out, asked.takes, within(kLong), 1, &place);
    if (status.code() != Code::kAborted) return "no disagreement: " + status.details();
    for (const char* each : {"all_gather of float32 in uneven", "all_gather of int32 in uneven"})
      if (status.details().find(each) == std::string::npos) return status.details();
    return "";
  });
}

}  // namespace
}  // namespace tw::test
