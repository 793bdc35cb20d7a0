// SPDX-License-Identifier: Apache-2.0
// Sums of floats depend on the order of additions. That depends on nothing that differs from run to
// run.
#include <cmath>
#include <random>

#include "test/collective/ranks.h"

namespace tw::test {
namespace {

// Whose sum differs with the order: of many sizes, none of them exact.
std::vector<float> inexact(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 7);
  std::vector<float> v(count);
  for (float& each : v)
    each = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 60) - 60);
  return v;
}

void lag(std::mt19937& random) {
  for (auto n = random() % 300; n != 0; --n) std::this_thread::yield();
}

// The bits of all results, of ranks that come late, each at another time in each run.
std::vector<float> results_of(Group& group, unsigned seed) {
  constexpr size_t kCounts[] = {9, 3000, 90'001};  // one step, and chunks of unequal parts
  std::mt19937 random(seed * 100 + static_cast<unsigned>(group.rank()));
  std::vector<float> all;
  for (const size_t count : kCounts)
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kAdasum}) {
      auto data = inexact(group.rank(), count);
      lag(random);
      const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, op, 0, count};
      if (!group.run(call, bytes(data), bytes(data), within(kLong)).ok()) return {};
      all.insert(all.end(), data.begin(), data.end());
      const size_t share = count / static_cast<size_t>(group.size());
      auto shares = inexact(group.rank(), share * static_cast<size_t>(group.size()));
      std::vector<float> mine(share);
      lag(random);
      const CollectiveCall scatter{CollectiveKind::kReduceScatter, DataType::kFloat32, op, 0,
                                   share};
      if (!group.run(scatter, bytes(shares), bytes(mine), within(kLong)).ok()) return {};
      shares.resize(share * static_cast<size_t>(group.size()));
      const CollectiveCall gather{CollectiveKind::kAllGather, DataType::kFloat32, ReduceOp::kSum, 0,
                                  share};
      if (!group.run(gather, bytes(mine), bytes(shares), within(kLong)).ok()) return {};
      all.insert(all.end(), shares.begin(), shares.end());
    }
  return all;
}

void check_same(const Placement& placement, int size) {
  std::mutex mutex;
  std::vector<float> first;
  for (const unsigned seed : {1u, 2u})
    as_ranks_of(placement, size, [&](Group& group) -> std::string {
      auto found = results_of(group, seed);
      if (found.empty()) return "it failed";
      const std::lock_guard lock(mutex);
      if (first.empty()) first = std::move(found);
      return found.empty() || std::memcmp(found.data(), first.data(), first.size() * 4) == 0
                 ? ""
                 : "other bits than in another run, or on another rank";
    });
}

TEST_CASE("group: results have the same bits from run to run, whoever is late") {
  constexpr int kRanks = 3;  // no power of two
  for (const Placement& placement : kPlacements) {
    CAPTURE(placement.fabric);
    check_same(placement, kRanks);
  }
  for (const char* algorithm :
       {"direct", "pairwise", "ring", "recursive_doubling", "halving_doubling"}) {
    CAPTURE(algorithm);
    const Variable forced("TENSORWIRE_ALLREDUCE", algorithm);
    check_same(kPlacements[0], kRanks);
  }
}

}  // namespace
}  // namespace tw::test
