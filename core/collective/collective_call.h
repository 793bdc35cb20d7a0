// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group have to agree on before one of them touches another one's data.
#pragma once

#include <cstdint>
#include <string>

#include "collective/data_type.h"

namespace tw::collective {

enum class CollectiveKind : uint8_t {
  kBarrier,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
};

inline constexpr size_t kCollectiveKinds = 9;
const char* name_of(CollectiveKind kind);

constexpr bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}
// Whether one rank has another part in it than the others.
constexpr bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  // A rank, where has_root(). Else what ranks have to agree on besides, such as a digest of the
  // sizes of arrays that travel as one.
  int32_t root = 0;
  // Elements. Of all-reduce, reduce and broadcast: of the array. Of all-gather and gather: that
  // each rank gives. Of reduce-scatter and scatter: that each rank gets. kUneven where ranks give
  // or get different numbers, as in each all-to-all.
  uint64_t count = 0;
  static constexpr uint64_t kUneven = ~uint64_t{0};

  bool operator==(const CollectiveCall&) const = default;
  // Not of kUneven.
  size_t bytes() const { return count * size_of(type); }
  // As a user would write it: all_reduce of 1024 float32, sum.
  std::string text() const;
};

constexpr bool is_adasum(const CollectiveCall& call) {
  return reduces(call.kind) && call.op == ReduceOp::kAdasum;
}

}  // namespace tw::collective
