// SPDX-License-Identifier: Apache-2.0
#include "collective/reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "collective/default_rounding.h"

namespace tw {
namespace {

const Kernels& best_kernels() { return *usable_kernels().back(); }

template <class Integer>
void divide_each(std::byte* data, size_t bytes, unsigned ranks) {
  using Quotient = std::conditional_t<std::is_signed_v<Integer>, int64_t, uint64_t>;
  for (size_t at = 0; at < bytes; at += sizeof(Integer)) {
    Integer value;
    std::memcpy(&value, data + at, sizeof value);
    value = static_cast<Integer>(static_cast<Quotient>(value) / static_cast<Quotient>(ranks));
    std::memcpy(data + at, &value, sizeof value);
  }
}

void divide(DataType type, std::byte* data, size_t bytes, unsigned ranks) {
  switch (type) {
    case DataType::kInt8:
      return divide_each<int8_t>(data, bytes, ranks);
    case DataType::kInt16:
      return divide_each<int16_t>(data, bytes, ranks);
    case DataType::kInt32:
      return divide_each<int32_t>(data, bytes, ranks);
    case DataType::kInt64:
      return divide_each<int64_t>(data, bytes, ranks);
    case DataType::kUint8:
      return divide_each<uint8_t>(data, bytes, ranks);
    case DataType::kUint16:
      return divide_each<uint16_t>(data, bytes, ranks);
    case DataType::kUint32:
      return divide_each<uint32_t>(data, bytes, ranks);
    case DataType::kUint64:
      return divide_each<uint64_t>(data, bytes, ranks);
    default:
      return;
  }
}

}  // namespace

void reduce_with(const Kernels& kernels, DataType type, ReduceOp op,
                 std::span<const std::byte* const> in, std::byte* result, size_t count,
                 unsigned ranks) {
  const size_t bytes = count * size_of(type);
  if (bytes == 0) return;
  if (in.size() == 1 && op != ReduceOp::kAverage) {
    if (result != in[0]) std::memcpy(result, in[0], bytes);
    return;
  }
  const DefaultRounding rounding;
  const FoldKernel fold = kernels.of(type, op);
  if (op != ReduceOp::kAverage || is_float(type)) {
    const double factor = op == ReduceOp::kAverage ? 1.0 / ranks : 1.0;
    return fold(in.data(), in.size(), result, 0, bytes, factor);
  }
  constexpr size_t kPiece = 16 << 10;  // divided while it is in the cache
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t end = std::min(bytes, at + kPiece);
    fold(in.data(), in.size(), result, at, end, 1);
    divide(type, result + at, end - at, ranks);
  }
}

void scale_with(const Kernels& kernels, DataType type, double factor, const std::byte* in,
                std::byte* result, size_t count) {
  const DefaultRounding rounding;
  kernels.of(type, ReduceOp::kSum)(&in, 1, result, 0, count * size_of(type), factor);
}

void reduce(DataType type, ReduceOp op, std::span<const std::byte* const> in, std::byte* result,
            size_t count, unsigned ranks) {
  reduce_with(best_kernels(), type, op, in, result, count, ranks);
}

void scale(DataType type, double factor, const std::byte* in, std::byte* result, size_t count) {
  scale_with(best_kernels(), type, factor, in, result, count);
}

void widen(DataType type, const std::byte* in, float* out, size_t count) {
  const DefaultRounding rounding;
  best_kernels().widen[static_cast<size_t>(type)](in, out, count);
}

void narrow(DataType type, const float* in, std::byte* out, size_t count) {
  const DefaultRounding rounding;
  best_kernels().narrow[static_cast<size_t>(type)](in, out, count);
}

}  // namespace tw
