// SPDX-License-Identifier: Apache-2.0
// Each operation of a group once, on arrays of some sizes. Empty: all results were right; else the
// first that was not.
#pragma once

#include <string>
#include <vector>

#include "test/collective/ranks.h"

namespace tw::test {

inline constexpr size_t kCounts[] = {0, 1, 3, 5, 11, 1000, 4096, 4100, 40'000, 262'144, 700'001};

template <class T>
std::string every_operation(Group& group, size_t count) {
  const int size = group.size(), rank = group.rank();
  const auto ranks = static_cast<size_t>(size);
  const Wait wait = within(kLong);
  const auto call = [&](CollectiveKind kind, int root = 0) {
    return CollectiveCall{kind, type_of<T>(), ReduceOp::kSum, root, count};
  };
  const auto failed = [&](CollectiveKind kind, const Status& status) {
    return std::string(name_of(kind)) + " of " + std::to_string(count) + ": " +
           (status.ok() ? "wrong result" : status.details());
  };
  const auto mine = array_of<T>(rank, count);
  const int root = size - 1;
  {
    std::vector<T> out(count);
    const auto asked = call(CollectiveKind::kAllReduce);
    Status status = group.run(asked, bytes(mine), bytes(out), wait);
    if (!status.ok() || out != sum_of<T>(size, count)) return failed(asked.kind, status);
    out = mine;
    status = group.run(asked, bytes(out), bytes(out), wait);
    if (!status.ok() || out != sum_of<T>(size, count)) return failed(asked.kind, status);
  }
  {
    std::vector<T> out(count, static_cast<T>(-1));
    const auto asked = call(CollectiveKind::kReduce, root);
    const Status status = group.run(asked, bytes(mine), rank == root ? bytes(out) : nullptr, wait);
    const auto expected =
        rank == root ? sum_of<T>(size, count) : std::vector<T>(count, static_cast<T>(-1));
    if (!status.ok() || out != expected) return failed(asked.kind, status);
  }
  {
    auto data = mine;
    const auto asked = call(CollectiveKind::kBroadcast, root);
    const Status status = group.run(asked, nullptr, bytes(data), wait);
    if (!status.ok() || data != array_of<T>(root, count)) return failed(asked.kind, status);
  }
  std::vector<T> all;
  for (int i = 0; i < size; ++i) {
    const auto theirs = array_of<T>(i, count);
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  {
    std::vector<T> out(count * ranks);
    const auto asked = call(CollectiveKind::kAllGather);
    const Status status = group.run(asked, bytes(mine), bytes(out), wait);
    if (!status.ok() || out != all) return failed(asked.kind, status);
  }
  {
    std::vector<T> out(rank == root ? count * ranks : 0);
    const auto asked = call(CollectiveKind::kGather, root);
    const Status status = group.run(asked, bytes(mine), rank == root ? bytes(out) : nullptr, wait);
    if (!status.ok() || (rank == root && out != all)) return failed(asked.kind, status);
  }
  {
    std::vector<T> out(count);
    const auto asked = call(CollectiveKind::kScatter, root);
    const Status status = group.run(asked, rank == root ? bytes(all) : nullptr, bytes(out), wait);
    if (!status.ok() || out != mine) return failed(asked.kind, status);
  }
  {
    const auto shares = array_of<T>(rank, count * ranks);
    std::vector<T> out(count);
    const auto asked = call(CollectiveKind::kReduceScatter);
    const Status status = group.run(asked, bytes(shares), bytes(out), wait);
    const auto sums = sum_of<T>(size, count * ranks);
    const auto at = sums.begin() + static_cast<ptrdiff_t>(count * static_cast<size_t>(rank));
    if (!status.ok() || !std::equal(out.begin(), out.end(), at)) return failed(asked.kind, status);
  }
  return {};
}

// Rank i gives rank j (i + 2j) % 5 blocks.
inline std::string every_pair(Group& group, size_t block) {
  const int size = group.size(), rank = group.rank();
  const auto blocks = [](int from, int to) { return static_cast<size_t>((from + 2 * to) % 5); };
  std::vector<Fabric::Run> gives, takes;
  std::vector<int64_t> in, expected;
  for (int to = 0; to < size; ++to) {
    const size_t count = blocks(rank, to) * block;
    gives.push_back({in.size() * 8, count * 8});
    in.insert(in.end(), count, rank * 1000 + to);
  }
  for (int from = 0; from < size; ++from) {
    const size_t count = blocks(from, rank) * block;
    takes.push_back({expected.size() * 8, count * 8});
    expected.insert(expected.end(), count, from * 1000 + rank);
  }
  std::vector<int64_t> out(expected.size());
  const CollectiveCall call{CollectiveKind::kAllToAll, DataType::kInt64, ReduceOp::kSum, 0,
                            CollectiveCall::kUneven};
  const Status status = group.exchange(call, bytes(in), gives, bytes(out), takes, within(kLong));
  if (!status.ok()) return status.details();
  return out == expected ? "" : "all_to_all: wrong result";
}

inline std::string every_count(Group& group) {
  for (const size_t count : kCounts) {
    if (count > 100'000 && (kSanitized || group.size() > 2)) continue;
    if (std::string wrong = every_operation<float>(group, count); !wrong.empty()) return wrong;
    if (std::string wrong = every_operation<int64_t>(group, count); !wrong.empty()) return wrong;
    if (std::string wrong = every_pair(group, count / 4); !wrong.empty()) return wrong;
  }
  return {};
}

}  // namespace tw::test
