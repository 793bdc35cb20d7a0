// SPDX-License-Identifier: Apache-2.0
#include "collective/by_parts.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collective/adasum.h"
#include "collective/part.h"
#include "collective/reduction.h"

namespace tw::collective {
namespace {

// Runs of one size, side by side.
std::vector<Fabric::Run> side_by_side(size_t ranks, size_t size) {
  std::vector<Fabric::Run> runs(ranks);
  for (size_t i = 0; i < ranks; ++i) runs[i] = {i * size, size};
  return runs;
}

std::unique_ptr<std::byte[]> room(size_t size) {
  return std::make_unique_for_overwrite<std::byte[]>(size);
}

}  // namespace

Status ByParts::all_to_all(const void* in, std::span<const Run> gives, void* out,
                           std::span<const Run> takes) {
  return fabric_.all_to_all(call_, static_cast<const std::byte*>(in), gives,
                            static_cast<std::byte*>(out), takes, wait_);
}

Status ByParts::run(const std::byte* in, std::byte* out) {
  if (call_.kind == CollectiveKind::kAllReduce) return all_reduce(in, out);
  if (call_.kind == CollectiveKind::kReduce) return reduce(in, out);
  return reduce_scatter(in, side_by_side(size_, call_.bytes()), out);
}

Status ByParts::all_reduce(const std::byte* in, std::byte* out) {
  return reduce_for(in, out, true);
}
Status ByParts::reduce(const std::byte* in, std::byte* out) { return reduce_for(in, out, false); }

Status ByParts::reduce_for(const std::byte* in, std::byte* out, bool all) {
  const size_t width = size_of(call_.type);
  std::vector<Run> parts;
  for (size_t i = 0; i < size_; ++i) {
    const Part part = part_of(call_.count, width, static_cast<int>(i), static_cast<int>(size_));
    parts.push_back({part.begin * width, part.size() * width});
  }
  const auto wants = [&](size_t i) { return all || i == static_cast<size_t>(call_.root); };
  const size_t mine = parts[rank_].size;
  const auto result = room(mine);
  if (Status status = reduce_scatter(in, parts, result.get()); !status.ok()) return status;
  std::vector<Run> gives(size_);
  for (size_t i = 0; i < size_; ++i) gives[i] = {0, wants(i) ? mine : 0};
  if (!wants(rank_)) std::ranges::fill(parts, Run{});
  return all_to_all(result.get(), gives, out, parts);
}

Status ByParts::reduce_scatter(const std::byte* in, std::span<const Run> shares, std::byte* out) {
  const size_t mine = shares[rank_].size, count = mine / size_of(call_.type);
  const auto rows = room(size_ * mine);
  if (Status status = all_to_all(in, shares, rows.get(), side_by_side(size_, mine)); !status.ok())
    return status;
  if (call_.op == ReduceOp::kAdasum) return adasum(rows.get(), out, count);
  std::vector<const std::byte*> all(size_);
  for (size_t i = 0; i < size_; ++i) all[i] = rows.get() + i * mine;
  tw::reduce(call_.type, call_.op, all, out, count, static_cast<unsigned>(size_));
  return {};
}

// Of `rows` of all ranks, which it uses up. Those of 16 bits are computed with as floats of 32.
Status ByParts::adasum(std::byte* rows, std::byte* out, size_t count) {
  if (call_.type == DataType::kFloat64) return combine(reinterpret_cast<double*>(rows), out, count);
  if (call_.type == DataType::kFloat32) return combine(reinterpret_cast<float*>(rows), out, count);
  const auto wide = room(size_ * count * sizeof(float)), sum = room(count * sizeof(float));
  auto* const floats = reinterpret_cast<float*>(wide.get());
  widen(call_.type, rows, floats, size_ * count);
  if (Status status = combine(floats, sum.get(), count); !status.ok()) return status;
  narrow(call_.type, reinterpret_cast<const float*>(sum.get()), out, count);
  return {};
}

// The tree. Products are those of whole arrays, from the parts of all ranks, which all add up in
// one order.
template <class Real>
Status ByParts::combine(Real* rows, std::byte* out, size_t count) {
  const auto row = [&](size_t i) { return rows + i * count; };
  for (size_t left = size_; left > 1; left = (left + 1) / 2) {
    const size_t pairs = left / 2;
    std::vector<Products> mine(pairs), all(size_ * pairs);
    for (size_t i = 0; i < pairs; ++i) mine[i] = products_of(row(2 * i), row(2 * i + 1), count);
    const size_t bytes = pairs * sizeof(Products);
    const std::vector<Run> gives(size_, Run{0, bytes});
    if (Status status = all_to_all(mine.data(), gives, all.data(), side_by_side(size_, bytes));
        !status.ok())
      return status;
    for (size_t i = 0; i < pairs; ++i) {
      Products whole;
      for (size_t rank = 0; rank < size_; ++rank) whole += all[rank * pairs + i];
      tw::adasum(whole, row(2 * i), row(2 * i + 1), row(i), count);
    }
    if (left % 2 != 0 && count != 0) std::memcpy(row(pairs), row(left - 1), count * sizeof(Real));
  }
  if (count != 0) std::memcpy(out, rows, count * sizeof(Real));
  return {};
}

}  // namespace tw::collective
