// SPDX-License-Identifier: Apache-2.0
// Operations in which each rank gives, or gets, a number of elements of its own.
#include <algorithm>

#include "test/collective/ranks.h"

namespace tw::test {
namespace {

using Run = Fabric::Run;

// Rank i has i * block + (i odd) elements; rank 2 has none.
size_t share_of(int rank, size_t block) {
  return rank == 2 ? 0 : static_cast<size_t>(rank) * block + static_cast<size_t>(rank % 2);
}

std::string every_operation(Group& group, size_t block) {
  const int rank = group.rank(), root = group.size() - 1;
  const auto ranks = static_cast<size_t>(group.size()), self = static_cast<size_t>(rank);
  std::vector<Run> shares(ranks), mine(ranks), of_root(ranks);
  std::vector<int64_t> all;
  for (int i = 0; i < group.size(); ++i) {
    const size_t count = share_of(i, block);
    shares[static_cast<size_t>(i)] = {all.size() * 8, count * 8};
    const auto theirs = array_of<int64_t>(i, count, 5);
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  const auto own = array_of<int64_t>(rank, share_of(rank, block), 5);
  const size_t size = own.size() * 8;
  std::ranges::fill(mine, Run{0, size});
  const auto call = [&](CollectiveKind kind) {
    return CollectiveCall{kind, DataType::kInt64, ReduceOp::kSum, root, CollectiveCall::kUneven};
  };
  const auto failed = [](const char* what, const Status& status) {
    return what + std::string(": ") + (status.ok() ? "wrong result" : status.details());
  };
  std::vector<int64_t> out(all.size());
  Status status = group.exchange(call(CollectiveKind::kAllGather), bytes(own), mine, bytes(out),
                                 shares, within(kLong));
  if (!status.ok() || out != all) return failed("all_gather", status);

  std::ranges::fill(out, 0);
  std::vector<Run> gives(ranks), nothing(ranks);
  gives[static_cast<size_t>(root)] = {0, size};
  status = group.exchange(call(CollectiveKind::kGather), bytes(own), gives, bytes(out),
                          rank == root ? shares : nothing, within(kLong));
  if (!status.ok() || (rank == root && out != all)) return failed("gather", status);

  std::vector<int64_t> share(own.size());
  std::vector<Run> takes(ranks);
  takes[static_cast<size_t>(root)] = {0, size};
  status = group.exchange(call(CollectiveKind::kScatter), bytes(all),
                          rank == root ? shares : nothing, bytes(share), takes, within(kLong));
  if (!status.ok() || share != own) return failed("scatter", status);

  const auto addend = array_of<int64_t>(rank, all.size());
  status = group.exchange(call(CollectiveKind::kReduceScatter), bytes(addend), shares, bytes(share),
                          {}, within(kLong));
  const auto sum = sum_of<int64_t>(group.size(), all.size());
  const auto at = sum.begin() + static_cast<ptrdiff_t>(shares[self].offset / 8);
  if (!status.ok() || !std::equal(share.begin(), share.end(), at))
    return failed("reduce_scatter", status);
  return {};
}

TEST_CASE("group: shares of any sizes, over each fabric") {
  for (const int size : {1, 2, 3, 5})
    as_ranks(size, [](Group& group) -> std::string {
      for (const size_t block : {0, 1, 1000, 40'000})
        if (std::string wrong = every_operation(group, block); !wrong.empty()) return wrong;
      return {};
    });
}

// Shares for ranks lie apart in the array, the own one as well, and in an order of their own.
TEST_CASE("group: shares with a factor may lie anywhere") {
  for (const int size : {1, 2, 3})
    as_ranks(size, [](Group& group) -> std::string {
      constexpr size_t kShare = 4, kApart = 16;
      const auto ranks = static_cast<size_t>(group.size()),
                 self = static_cast<size_t>(group.rank());
      std::vector<float> in(kApart * (ranks + 1), -1000), out(kShare), expected(kShare);
      std::vector<Run> gives;
      for (size_t i = 0; i < ranks; ++i) {
        const size_t at = (ranks - i) * kApart;
        gives.push_back({at * sizeof(float), kShare * sizeof(float)});
        for (size_t e = 0; e < kShare; ++e)
          in[at + e] = static_cast<float>(10 * i + e + 1) * static_cast<float>(self + 1);
      }
      for (size_t e = 0; e < kShare; ++e)
        expected[e] = 0.5f * static_cast<float>(10 * self + e + 1) *
                      static_cast<float>(ranks * (ranks + 1) / 2);
      const CollectiveCall call{CollectiveKind::kReduceScatter, DataType::kFloat32, ReduceOp::kSum,
                                0, CollectiveCall::kUneven};
      const Status status =
          group.exchange(call, bytes(in), gives, bytes(out), {}, within(kLong), 0.5);
      if (!status.ok()) return status.details();
      return out == expected ? "" : "wrong result";
    });
}

TEST_CASE("group: what has no uneven shares is refused with them, and the group goes on") {
  MemoryStore store;
  const auto group = Group::make(store, {0, 1}, within(kLong));
  REQUIRE(group.ok());
  const Run one{0, 8};
  const int64_t in = 7;
  int64_t out = 0;
  const auto exchange = [&](CollectiveKind kind) {
    return (*group)->exchange({kind, DataType::kInt64, ReduceOp::kSum, 0, CollectiveCall::kUneven},
                              reinterpret_cast<const std::byte*>(&in), {&one, 1},
                              reinterpret_cast<std::byte*>(&out), {&one, 1}, within(kLong));
  };
  for (const auto kind : {CollectiveKind::kBarrier, CollectiveKind::kAllReduce,
                          CollectiveKind::kReduce, CollectiveKind::kBroadcast}) {
    CAPTURE(name_of(kind));
    const Status refused = exchange(kind);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(refused.details() == "the operation has no uneven shares");
  }
  CHECK(out == 0);
  CHECK(exchange(CollectiveKind::kAllToAll).ok());
  CHECK(out == 7);
}

TEST_CASE("group: uneven shares of which ranks think differently are told") {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
    as_ranks(2, [kind](Group& group) -> std::string {
      std::vector<int64_t> in(8), out(8);
      const size_t wrong = group.rank() == 0 ? 8 : 0;
      const bool gathers = kind == CollectiveKind::kAllGather;
      const std::vector<Run> gives{{0, 16}, {gathers ? 0u : 16u, gathers ? 16 : 16 + wrong}};
      std::vector<Run> takes{{0, 16}, {16, 16 + wrong}};
      if (!gathers) takes.clear();
      const CollectiveCall call{kind, DataType::kInt64, ReduceOp::kSum, 0, CollectiveCall::kUneven};
      const Status status =
          group.exchange(call, bytes(in), gives, bytes(out), takes, within(kLong));
      // Whoever gets another size than it takes. The other one has what it takes, and may be done.
      const bool told = status.details().find("bytes to rank") != std::string::npos;
      const bool done = status.ok() && group.rank() == (gathers ? 1 : 0);
      return told || done ? "" : "not told: " + status.details();
    });
}

TEST_CASE("group: an even operation is no uneven one") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<int64_t> in(2), out(4);
    const std::vector<Run> gives(2, {0, 16}), takes{{0, 16}, {16, 16}};
    CollectiveCall call{CollectiveKind::kAllGather, DataType::kInt64, ReduceOp::kSum, 0, 2};
    Status status;
    if (group.rank() == 0) {
      status = group.run(call, bytes(in), bytes(out), within(kLong));
    } else {
      call.count = CollectiveCall::kUneven;
      status = group.exchange(call, bytes(in), gives, bytes(out), takes, within(kLong));
    }
    const bool told =
        status.details().find("all_gather of int64 in uneven shares") != std::string::npos;
    return told ? "" : "not told: " + status.details();
  });
}

}  // namespace
}  // namespace tw::test
