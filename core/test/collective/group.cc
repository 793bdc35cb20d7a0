// SPDX-License-Identifier: Apache-2.0
// Groups whose ranks are threads of one process: they meet and move data as processes do.
#include "collective/group.h"

#include <doctest/doctest.h>

#include <thread>

#include "test/call/world.h"
#include "test/collective/operations.h"

namespace tw::test {
namespace {

TEST_CASE("group: each operation has its result on each rank, whatever the sizes") {
  const std::vector<int> sizes = kSanitized ? std::vector{3} : std::vector{1, 2, 3, 5};
  for (const Placement& placement : kPlacements)
    for (const int size : sizes) {
      CAPTURE(placement.fabric);
      CAPTURE(size);
      as_ranks_of(placement, size, [&](Group& group) -> std::string {
        // Two ranks share a host of two.
        const bool alone = placement.on_a_host != 0 && size <= placement.on_a_host;
        const std::string expected = size == 1 ? "" : alone ? "shared memory" : placement.fabric;
        if (group.fabric() != expected) return group.fabric();
        return every_count(group);
      });
    }
}

TEST_CASE("group: each rank's array counts by its factor") {
  for (const int size : {1, 3})
    as_ranks(size, [](Group& group) -> std::string {
      const auto ranks = static_cast<size_t>(group.size());
      const double factor = 0.5 * (group.rank() + 1);
      for (const size_t count : {size_t{1}, size_t{1000}, size_t{40'000}}) {
        std::vector<float> wanted(count * ranks);
        for (int rank = 0; rank < group.size(); ++rank) {
          const auto theirs = array_of<float>(rank, count * ranks);
          for (size_t i = 0; i < wanted.size(); ++i)
            wanted[i] += theirs[i] * 0.5F * static_cast<float>(rank + 1);
        }
        const auto call = [&](CollectiveKind kind, size_t n) {
          return CollectiveCall{kind, DataType::kFloat32, ReduceOp::kSum, 0, n};
        };
        const auto in = array_of<float>(group.rank(), count * ranks);
        const auto all_reduce = call(CollectiveKind::kAllReduce, in.size());
        auto data = in;
        std::vector<float> out(in.size()), share(count);
        Status status = group.run(all_reduce, bytes(data), bytes(data), within(kLong), factor);
        if (!status.ok() || data != wanted) return "all_reduce in place: " + status.details();
        status = group.run(all_reduce, bytes(in), bytes(out), within(kLong), factor);
        if (!status.ok() || out != wanted) return "all_reduce: " + status.details();
        const bool root = group.rank() == 0;
        out.assign(in.size(), 0);
        status = group.run(call(CollectiveKind::kReduce, in.size()), bytes(in),
                           root ? bytes(out) : nullptr, within(kLong), factor);
        if (!status.ok() || (root && out != wanted)) return "reduce: " + status.details();
        status = group.run(call(CollectiveKind::kReduceScatter, count), bytes(in), bytes(share),
                           within(kLong), factor);
        const auto at = wanted.begin() + static_cast<ptrdiff_t>(count) * group.rank();
        if (!status.ok() || !std::equal(share.begin(), share.end(), at))
          return "reduce_scatter: " + status.details();
        std::vector<Fabric::Run> shares(ranks);
        for (size_t i = 0; i < ranks; ++i) shares[i] = {i * count * 4, count * 4};
        std::ranges::fill(share, 0.0F);
        status = group.exchange(call(CollectiveKind::kReduceScatter, CollectiveCall::kUneven),
                                bytes(in), shares, bytes(share), {}, within(kLong), factor);
        if (!status.ok() || !std::equal(share.begin(), share.end(), at))
          return "reduce_scatter of uneven shares: " + status.details();
        if (in != array_of<float>(group.rank(), in.size())) return "the input has changed";
      }
      return {};
    });
}

TEST_CASE("group: ranks that lag, and roots that run ahead, change nothing") {
  as_ranks(3, [](Group& group) -> std::string {
    const Wait wait = within(kLong);
    for (int round = 0; round < (kSanitized ? 1000 : 3000); ++round) {
      const size_t count = round % 97 == 0 ? 30'000 : static_cast<size_t>(round % 40);
      const int root = round / 300 % 3;
      // The root needs nobody, and begins as much as the board has room for.
      auto data = array_of<float>(group.rank() == root ? 50 : 60, count, round);
      const CollectiveCall broadcast{CollectiveKind::kBroadcast, DataType::kFloat32, ReduceOp::kSum,
                                     root, count};
      if (Status status = group.run(broadcast, nullptr, bytes(data), wait); !status.ok())
        return status.details();
      if (data != array_of<float>(50, count, round)) return "wrong broadcast";
      if (round % 50 != 0) continue;
      auto sum = array_of<float>(group.rank(), count, round);
      const CollectiveCall reduce{CollectiveKind::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 0,
                                  count};
      if (Status status = group.run(reduce, bytes(sum), bytes(sum), wait); !status.ok())
        return status.details();
      if (sum != sum_of<float>(3, count, round)) return "wrong sum";
    }
    return {};
  });
}

TEST_CASE("group: settings that leave ranks no transport are named") {
  const auto why = [](const char* name, const char* value) {
    const Variable setting(name, value);
    MemoryStore store;
    const auto group = Group::make(store, {0, 2, "127.0.0.1", {}}, within(kLong));
    return group ? "it was joined" : group.status().details();
  };
  for (const auto& [name, value] : {std::pair{"TENSORWIRE_TRANSPORT", "grpc"},
                                    std::pair{"TENSORWIRE_FORBID", "shm,tcp,verbs"}}) {
    const std::string said = why(name, value);
    CAPTURE(said);
    CHECK(said.starts_with("ranks reach each other by shm, "));
    CHECK(said.ends_with(std::string(", and ") + name + "=" + value +
                         " permits none of these: unset it"));
  }
}

}  // namespace
}  // namespace tw::test
