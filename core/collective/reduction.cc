// SPDX-License-Identifier: Apache-2.0
#include "collective/reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tw {
namespace {

const Kernels& best_kernels() { return *usable_kernels().back(); }

// Rounds to nearest and keeps denormals while it lives, whatever the thread does otherwise:
// frameworks set their threads to flush denormals.
class DefaultRounding {
 public:
  DefaultRounding() : before_(control()) {
    if (before_ != kDefault) set_control(kDefault);
  }
  ~DefaultRounding() {
    if (before_ != kDefault) set_control(before_);
  }
  DefaultRounding(const DefaultRounding&) = delete;
  DefaultRounding& operator=(const DefaultRounding&) = delete;

 private:
#if defined(__x86_64__)
  using Control = unsigned;
  static constexpr Control kDefault = 0x1f80;  // without the flags of what has happened
  static Control control() { return _mm_getcsr() & ~0x3fu; }
  static void set_control(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kDefault = 0;
  static Control control() {
    Control control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set_control(Control control) { __asm__ volatile("msr fpcr, %0" ::"r"(control)); }
#else
  using Control = int;
  static constexpr Control kDefault = 0;
  static Control control() { return kDefault; }
  static void set_control(Control) {}
#endif

  const Control before_;
};

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
                 std::span<const std::byte* const> in, std::byte* result, std::byte* also,
                 size_t count, unsigned ranks) {
  const size_t bytes = count * size_of(type);
  if (bytes == 0) return;
  if (in.size() == 1 && op != ReduceOp::kAverage) {
    if (result != in[0]) std::memcpy(result, in[0], bytes);
    if (also != nullptr) std::memcpy(also, in[0], bytes);
    return;
  }
  const DefaultRounding rounding;
  const FoldKernel fold = kernels.of(type, op);
  if (op != ReduceOp::kAverage || is_float(type)) {
    const double factor = op == ReduceOp::kAverage ? 1.0 / ranks : 1.0;
    return fold(in.data(), in.size(), result, also, 0, bytes, factor);
  }
  constexpr size_t kPiece = 16 << 10;  // divided while it is in the cache
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t end = std::min(bytes, at + kPiece);
    fold(in.data(), in.size(), result, nullptr, at, end, 1);
    divide(type, result + at, end - at, ranks);
    if (also != nullptr) std::memcpy(also + at, result + at, end - at);
  }
}

void scale_with(const Kernels& kernels, DataType type, double factor, std::byte* data,
                size_t count) {
  if (!is_float(type)) return;
  const DefaultRounding rounding;
  const std::byte* const in = data;
  kernels.of(type, ReduceOp::kSum)(&in, 1, data, nullptr, 0, count * size_of(type), factor);
}

void reduce(DataType type, ReduceOp op, std::span<const std::byte* const> in, std::byte* result,
            std::byte* also, size_t count, unsigned ranks) {
  reduce_with(best_kernels(), type, op, in, result, also, count, ranks);
}

void scale(DataType type, double factor, std::byte* data, size_t count) {
  scale_with(best_kernels(), type, factor, data, count);
}

}  // namespace tw
