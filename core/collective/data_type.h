// SPDX-License-Identifier: Apache-2.0
// What collectives compute with: types of elements, and operations on them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tw {

// The two of 8 bits are OCP's, as ml_dtypes has them: float8_e4m3fn (no infinity) and float8_e5m2.
// A bool is a byte of 0 or 1.
enum class DataType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat8E4m3,
  kFloat8E5m2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kBool,
};
inline constexpr size_t kDataTypes = 15;

enum class ReduceOp : uint8_t {
  kSum,
  kAverage,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
  kAdasum,  // of whole arrays: see adasum.h
};
inline constexpr size_t kReduceOps = 9;

// In bytes.
constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat64:
    case DataType::kInt64:
    case DataType::kUint64:
      return 8;
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kUint32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kInt16:
    case DataType::kUint16:
      return 2;
    default:
      return 1;
  }
}

constexpr bool is_float(DataType type) { return type <= DataType::kFloat8E5m2; }

// Whether there is such a reduction: floats have no bitwise ones, bools no average, and Adasum is
// of floats of 16 bits and more.
constexpr bool reducible(DataType type, ReduceOp op) {
  if (op == ReduceOp::kAdasum) return is_float(type) && size_of(type) > 1;
  if (op >= ReduceOp::kBitAnd) return !is_float(type);
  return op != ReduceOp::kAverage || type != DataType::kBool;
}

// As NumPy and ml_dtypes call it.
const char* name_of(DataType type);
const char* name_of(ReduceOp op);

}  // namespace tw
