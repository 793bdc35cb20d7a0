// SPDX-License-Identifier: Apache-2.0
// Adasum: of two vectors, and of the arrays of a group's ranks.
#include "collective/adasum.h"

#include <bit>
#include <cmath>
#include <random>

#include "collective/reduction.h"
#include "test/collective/ranks.h"
#include "test/sanitized.h"

namespace tw::test {
namespace {

using Vector = std::vector<double>;

// The paper's formula, word for word.
Vector pair_of(const Vector& a, const Vector& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    sum[i] = (aa == 0 ? 1 : 1 - ab / (2 * aa)) * a[i] + (bb == 0 ? 1 : 1 - ab / (2 * bb)) * b[i];
  return sum;
}

Vector tree_of(std::vector<Vector> all) {
  while (all.size() > 1) {
    std::vector<Vector> next;
    for (size_t i = 0; i + 1 < all.size(); i += 2) next.push_back(pair_of(all[i], all[i + 1]));
    if (all.size() % 2 != 0) next.push_back(all.back());
    all = next;
  }
  return all[0];
}

Vector combined(const Vector& a, const Vector& b) {
  Vector result(a.size());
  adasum(products_of(a.data(), b.data(), a.size()), a.data(), b.data(), result.data(), a.size());
  return result;
}

TEST_CASE("adasum: orthogonal vectors are added, parallel ones averaged, zeros change nothing") {
  CHECK(combined({3, 0, 0}, {0, 4, 0}) == Vector{3, 4, 0});
  CHECK(combined({3, 4}, {3, 4}) == Vector{3, 4});
  CHECK(combined({2, 2}, {4, 4}) == Vector{3, 3});
  CHECK(combined({1, 2}, {0, 0}) == Vector{1, 2});
  CHECK(combined({0, 0}, {1, 2}) == Vector{1, 2});
  CHECK(combined({0}, {0}) == Vector{0});
  CHECK(combined({}, {}) == Vector{});
  for (const double each : combined({NAN, 1, 2}, {3, 4, 5})) CHECK(std::isnan(each));
}

// Values that all types have.
Vector vector_of(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  Vector v(count);
  for (double& each : v) each = static_cast<double>(random() % 64) / 16 - 1;
  return v;
}

struct Kept {
  DataType type;
  double tolerance;  // relative
};
constexpr Kept kKept[] = {{DataType::kFloat64, 1e-12},
                          {DataType::kFloat32, 1e-5},
                          {DataType::kFloat16, 2e-3},
                          {DataType::kBfloat16, 2e-2}};

std::vector<std::byte> stored(DataType type, const Vector& values) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  if (values.empty()) return bytes;
  const std::vector<float> floats(values.begin(), values.end());
  if (type == DataType::kFloat64)
    std::memcpy(bytes.data(), values.data(), bytes.size());
  else if (type == DataType::kFloat32)
    std::memcpy(bytes.data(), floats.data(), bytes.size());
  else
    narrow(type, floats.data(), bytes.data(), floats.size());
  return bytes;
}

Vector loaded(DataType type, const std::vector<std::byte>& bytes) {
  Vector values(bytes.size() / size_of(type));
  if (values.empty()) return values;
  std::vector<float> floats(values.size());
  if (type == DataType::kFloat64) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  if (type == DataType::kFloat32)
    std::memcpy(floats.data(), bytes.data(), bytes.size());
  else
    widen(type, bytes.data(), floats.data(), floats.size());
  return {floats.begin(), floats.end()};
}

bool close(const Vector& got, const Vector& wanted, double tolerance) {
  bool all = got.size() == wanted.size();
  for (size_t i = 0; all && i < got.size(); ++i)
    all = std::fabs(got[i] - wanted[i]) <= tolerance * (1 + std::fabs(wanted[i]));
  return all;
}

// What was found first, by what it is of: over any fabric.
class Firsts {
 public:
  bool same(const std::string& key, const std::vector<std::byte>& found) {
    const std::lock_guard lock(mutex_);
    return firsts_.try_emplace(key, found).first->second == found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::byte>> firsts_;
};

std::string every_adasum(Group& group, const Kept& kept, size_t count, Firsts& firsts) {
  const DataType type = kept.type;
  const double tolerance = kept.tolerance;
  const auto ranks = static_cast<size_t>(group.size());
  const auto self = static_cast<size_t>(group.rank());
  const int root = group.size() - 1;
  std::vector<Vector> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(vector_of(rank, count * ranks));
  const Vector wanted = tree_of(all);
  const auto in = stored(type, all[self]);
  const auto call = [&](CollectiveKind kind, size_t n) {
    return CollectiveCall{kind, type, ReduceOp::kAdasum, root, n};
  };
  std::vector<std::byte> out(in.size());
  Status status = group.run(call(CollectiveKind::kAllReduce, count * ranks), in.data(), out.data(),
                            within(kLong));
  if (!status.ok()) return status.details();
  if (!close(loaded(type, out), wanted, tolerance)) return "all_reduce: wrong result";
  const std::string key = std::string(name_of(type)) + " of " + std::to_string(count);
  if (!firsts.same(key, out)) return "all_reduce: other bits than another rank, or fabric";
  auto data = in;
  status = group.run(call(CollectiveKind::kAllReduce, count * ranks), data.data(), data.data(),
                     within(kLong));
  if (!status.ok() || data != out) return "all_reduce in place: " + status.details();
  std::vector<std::byte> reduced(in.size());
  status = group.run(call(CollectiveKind::kReduce, count * ranks), in.data(),
                     group.rank() == root ? reduced.data() : nullptr, within(kLong));
  if (!status.ok() || (group.rank() == root && reduced != out))
    return "reduce: " + status.details();
  std::vector<std::byte> share(count * size_of(type));
  status = group.run(call(CollectiveKind::kReduceScatter, count), in.data(), share.data(),
                     within(kLong));
  if (!status.ok()) return status.details();
  const auto at = wanted.begin() + static_cast<ptrdiff_t>(self * count);
  return close(loaded(type, share), {at, at + static_cast<ptrdiff_t>(count)}, tolerance)
             ? ""
             : "reduce_scatter: wrong result";
}

TEST_CASE("adasum: of any number of ranks, with the same bits on all, and over each fabric") {
  const std::vector<int> sizes = kSanitized ? std::vector{3} : std::vector{1, 2, 3, 5};
  for (const int size : sizes) {
    Firsts firsts;
    as_ranks(size, [&](Group& group) -> std::string {
      for (const Kept& kept : kKept)
        for (const size_t count : {size_t{0}, size_t{3}, size_t{2001}})
          if (std::string wrong = every_adasum(group, kept, count, firsts); !wrong.empty())
            return std::string(name_of(kept.type)) + " of " + std::to_string(count) + ": " + wrong;
      return group.size() > 2 ? "" : every_adasum(group, kKept[1], 300'001, firsts);
    });
  }
}

TEST_CASE("adasum: has no integers and no floats of 8 bits, and is told from a sum") {
  as_ranks(2, [](Group& group) -> std::string {
    std::vector<float> data(8, 1);
    for (const DataType type : {DataType::kInt32, DataType::kFloat8E4m3, DataType::kBool}) {
      const CollectiveCall call{CollectiveKind::kAllReduce, type, ReduceOp::kAdasum, 0, 4};
      const Status status = group.run(call, bytes(data), bytes(data), within(kLong));
      if (status.code() != Code::kInvalidArgument) return "reduced " + std::string(name_of(type));
    }
    const ReduceOp op = group.rank() == 0 ? ReduceOp::kAdasum : ReduceOp::kSum;
    const CollectiveCall call{CollectiveKind::kAllReduce, DataType::kFloat32, op, 0, 8};
    const Status status = group.run(call, bytes(data), bytes(data), within(kLong));
    const bool told =
        status.details().find("called all_reduce of 8 float32, adasum") != std::string::npos;
    return told ? "" : "not told: " + status.details();
  });
}

}  // namespace
}  // namespace tw::test
