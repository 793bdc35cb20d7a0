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

// The results of rank 0 of three.
std::vector<float> bits_of(const Placement& placement) {
  std::mutex mutex;
  std::vector<float> first;
  as_ranks_of(placement, 3, [&](Group& group) -> std::string {
    auto found = results_of(group, 1);
    if (found.empty()) return "it failed";
    const std::lock_guard lock(mutex);
    if (group.rank() == 0) first = std::move(found);
    return {};
  });
  return first;
}

TEST_CASE("group: a deterministic one has the same bits with any table") {
  const Placement over_tcp = kPlacements[2];
  Placement deterministic = over_tcp;
  deterministic.deterministic = true;
  const std::vector<float> plain = bits_of(over_tcp);
  const Rules table("all_reduce tcp 3 281474976710656 ring\nreduce_scatter tcp 3 12 ring");
  const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
  CHECK(bits_of(over_tcp) != plain);  // else the table shows nothing
  CHECK(bits_of(deterministic) == plain);
  const Variable setting("TENSORWIRE_DETERMINISTIC", "on");
  CHECK(bits_of(over_tcp) == plain);
  as_ranks_of(over_tcp, 2, [&](Group& group) -> std::string {
    return !group.tuned() && group.why_not_tuned() ==
                                 "the table of tensorwire tune collectives, " + table.path() +
                                     ", is not used: the group is deterministic"
               ? ""
               : group.why_not_tuned();
  });
}

TEST_CASE("group: within a host the bits are those of all ways") {
  std::vector<float> first;
  for (const char* way : {"one_step", "stage"}) {
    const Rules table(std::string("all_reduce memory 3 281474976710656 ") + way);
    const Variable tuning("TENSORWIRE_TUNING", table.path().c_str());
    const std::vector<float> found = bits_of(kPlacements[0]);
    if (first.empty()) first = found;
    CHECK(!found.empty());
    CHECK(found == first);
  }
}

}  // namespace
}  // namespace tw::test
