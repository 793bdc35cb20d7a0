// SPDX-License-Identifier: Apache-2.0
// Every kernel against a reference that computes one element at a time.
#include "collective/reduction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tw {
namespace {

using Bytes = std::vector<std::byte>;

// ---- the reference ----

struct Format {
  int exponent_bits, fraction_bits;
  bool infinite;
  int bits() const { return 1 + exponent_bits + fraction_bits; }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint64_t sign() const { return uint64_t{1} << (bits() - 1); }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << fraction_bits; }
  uint64_t nan() const {
    return infinite ? infinity() | uint64_t{1} << (fraction_bits - 1) : sign() - 1;
  }
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return {11, 52, true};
    case DataType::kFloat32:
      return {8, 23, true};
    case DataType::kFloat16:
      return {5, 10, true};
    case DataType::kBfloat16:
      return {8, 7, true};
    case DataType::kFloat8E4m3:
      return {4, 3, false};
    default:
      return {5, 2, true};
  }
}

double decoded(Format format, uint64_t bits) {
  const uint64_t magnitude = bits & (format.sign() - 1);
  const double sign = (bits & format.sign()) != 0 ? -1 : 1;
  if (format.infinite ? magnitude > format.infinity() : magnitude == format.nan()) return NAN;
  if (format.infinite && magnitude == format.infinity()) return sign * INFINITY;
  const auto exponent = static_cast<int>(magnitude >> format.fraction_bits);
  uint64_t fraction = magnitude & ((uint64_t{1} << format.fraction_bits) - 1);
  if (exponent != 0) fraction |= uint64_t{1} << format.fraction_bits;
  return sign * std::ldexp(static_cast<double>(fraction),
                           std::max(exponent, 1) - format.bias() - format.fraction_bits);
}

// Of a value that is rounded to the nearest.
uint64_t encoded(Format format, double value) {
  if (std::isnan(value)) return format.nan();
  const uint64_t sign = std::signbit(value) ? format.sign() : 0;
  const uint64_t too_large = format.infinite ? format.infinity() : format.nan();
  value = std::fabs(value);
  if (std::isinf(value)) return sign | too_large;
  const int exponent =
      value == 0 ? 1 - format.bias() : std::max(std::ilogb(value), 1 - format.bias());
  const double fraction = std::nearbyint(std::ldexp(value, format.fraction_bits - exponent));
  // The leading one is the lowest bit of the exponent; a fraction rounded up carries into it.
  const auto units = static_cast<uint64_t>(exponent + format.bias() - 1) << format.fraction_bits;
  return sign | std::min(units + static_cast<uint64_t>(fraction), too_large);
}

uint64_t loaded(const std::byte* from, size_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, size);
  return bits;
}

template <class Real>
Real apply_real(ReduceOp op, Real a, Real b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<Real>::quiet_NaN()
                                            : (a < b ? a : b);
    case ReduceOp::kMax:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<Real>::quiet_NaN()
                                            : (a > b ? a : b);
    default:
      return a + b;
  }
}

template <class Real>
uint64_t folded_real(DataType type, ReduceOp op, const std::vector<uint64_t>& in, unsigned ranks) {
  const Format format = format_of(type);
  auto value = static_cast<Real>(decoded(format, in[0]));
  for (size_t k = 1; k < in.size(); ++k) {
    value = apply_real(op, value, static_cast<Real>(decoded(format, in[k])));
  }
  if (op == ReduceOp::kAverage) value = value * static_cast<Real>(1.0 / ranks);
  return encoded(format, value);
}

int64_t signed_of(uint64_t bits, size_t size) {
  const auto unused = static_cast<int>(64 - 8 * size);
  return static_cast<int64_t>(bits << unused) >> unused;
}

uint64_t apply_integer(ReduceOp op, bool is_signed, size_t size, uint64_t a, uint64_t b) {
  const bool less = is_signed ? signed_of(a, size) < signed_of(b, size) : a < b;
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return less ? a : b;
    case ReduceOp::kMax:
      return less ? b : a;
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
    default:
      return a + b;
  }
}

uint64_t folded_integer(DataType type, ReduceOp op, const std::vector<uint64_t>& in,
                        unsigned ranks) {
  const bool is_signed = type < DataType::kUint8;
  const size_t size = size_of(type);
  const uint64_t mask = ~uint64_t{0} >> (64 - 8 * size);
  uint64_t value = in[0];
  for (size_t k = 1; k < in.size(); ++k) {
    value = apply_integer(op, is_signed, size, value, in[k]) & mask;
    if (type == DataType::kBool && op == ReduceOp::kSum) value = value != 0;
  }
  if (op != ReduceOp::kAverage) return value;
  return (is_signed ? static_cast<uint64_t>(signed_of(value, size) / int64_t{ranks})
                    : value / ranks) &
         mask;
}

uint64_t folded(DataType type, ReduceOp op, const std::vector<uint64_t>& in, unsigned ranks) {
  if (in.size() == 1 && op != ReduceOp::kAverage) return in[0];
  if (type == DataType::kFloat64) return folded_real<double>(type, op, in, ranks);
  if (is_float(type)) return folded_real<float>(type, op, in, ranks);
  return folded_integer(type, op, in, ranks);
}

Bytes expected(DataType type, ReduceOp op, const std::vector<const std::byte*>& in, size_t count,
               unsigned ranks) {
  const size_t size = size_of(type);
  Bytes result(count * size);
  std::vector<uint64_t> values(in.size());
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < in.size(); ++k) values[k] = loaded(in[k] + i * size, size);
    const uint64_t bits = folded(type, op, values, ranks);
    std::memcpy(result.data() + i * size, &bits, size);
  }
  return result;
}

// ---- what is reduced ----

// Any bits, and often those where floats are special.
void fill(DataType type, std::byte* to, size_t count, std::mt19937_64& random) {
  const size_t size = size_of(type);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    if (type == DataType::kBool) bits &= 1;
    if (is_float(type) && random() % 4 == 0) {
      const Format format = format_of(type);
      const uint64_t special[] = {0,
                                  1,
                                  format.infinity() - 1,
                                  format.infinity(),
                                  format.nan(),
                                  uint64_t{1} << format.fraction_bits};
      bits = special[random() % std::size(special)] | (random() % 2 == 0 ? format.sign() : 0);
    } else if (is_float(type) && random() % 2 == 0) {
      const Format format = format_of(type);  // near one, so that sums and products round
      bits = (bits & (format.sign() | ((uint64_t{1} << format.fraction_bits) - 1))) |
             (static_cast<uint64_t>(format.bias()) + random() % 4) << format.fraction_bits;
    }
    std::memcpy(to + i * size, &bits, size);
  }
}

std::string digits(const Bytes& bytes, size_t at, size_t size) {
  return std::to_string(loaded(bytes.data() + at, size));
}

// Empty where they are the same.
std::string difference(DataType type, const Bytes& got, const Bytes& wanted) {
  const size_t size = size_of(type);
  for (size_t at = 0; at < wanted.size(); at += size) {
    if (std::memcmp(got.data() + at, wanted.data() + at, size) != 0) {
      return "element " + std::to_string(at / size) + " is " + digits(got, at, size) +
             " instead of " + digits(wanted, at, size);
    }
  }
  return "";
}

constexpr DataType kTypes[] = {
    DataType::kFloat64,    DataType::kFloat32,    DataType::kFloat16, DataType::kBfloat16,
    DataType::kFloat8E4m3, DataType::kFloat8E5m2, DataType::kInt8,    DataType::kInt16,
    DataType::kInt32,      DataType::kInt64,      DataType::kUint8,   DataType::kUint16,
    DataType::kUint32,     DataType::kUint64,     DataType::kBool,
};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAverage, ReduceOp::kProduct,
                             ReduceOp::kMin,   ReduceOp::kMax,     ReduceOp::kBitAnd,
                             ReduceOp::kBitOr, ReduceOp::kBitXor};
constexpr DataType kSmallFloats[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4m3,
                                     DataType::kFloat8E5m2};

template <class Visit>
void each_reduction(Visit visit) {
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (reducible(type, op)) visit(type, op);
    }
  }
}

// Inputs, of which none is aligned.
struct Inputs {
  Inputs(DataType type, size_t n, size_t count, std::mt19937_64& random) : bytes(n) {
    for (size_t k = 0; k < n; ++k) {
      bytes[k].resize(count * size_of(type) + 1 + k % 3);
      at.push_back(bytes[k].data() + 1 + k % 3);
      fill(type, bytes[k].data() + 1 + k % 3, count, random);
    }
  }
  std::vector<Bytes> bytes;
  std::vector<const std::byte*> at;
};

// Of a result at an odd address; nothing around it has changed.
Bytes reduced(const Kernels& kernels, DataType type, ReduceOp op, const Inputs& inputs,
              size_t count, unsigned ranks) {
  const size_t size = count * size_of(type);
  Bytes result(size + 2, std::byte{0x5a});
  reduce_with(kernels, type, op, inputs.at, result.data() + 1, count, ranks);
  CHECK(result.front() == std::byte{0x5a});
  CHECK(result.back() == std::byte{0x5a});
  return {result.begin() + 1, result.end() - 1};
}

TEST_CASE(
    "reduction: every type and operation, of any number of inputs, on every instruction set") {
  std::mt19937_64 random(1);
  each_reduction([&](DataType type, ReduceOp op) {
    CAPTURE(std::string(name_of(type)));
    CAPTURE(std::string(name_of(op)));
    for (const size_t n : {1, 2, 3, 4, 5, 9}) {
      for (const size_t count : {1, 37, 395}) {
        const Inputs inputs(type, n, count, random);
        const auto ranks = static_cast<unsigned>(n + count % 5);
        const Bytes wanted = expected(type, op, inputs.at, count, ranks);
        for (const Kernels* const kernels : usable_kernels()) {
          CAPTURE(std::string(kernels->instruction_set));
          const Bytes got = reduced(*kernels, type, op, inputs, count, ranks);
          CHECK(difference(type, got, wanted) == "");
        }
      }
    }
  });
}

TEST_CASE("reduction: more than is divided at once, by the best instruction set") {
  std::mt19937_64 random(2);
  constexpr size_t kCount = 20'001;
  for (const DataType type : {DataType::kInt8, DataType::kInt32, DataType::kBfloat16}) {
    const Inputs inputs(type, 3, kCount, random);
    Bytes got(kCount * size_of(type));
    reduce(type, ReduceOp::kAverage, inputs.at, got.data(), kCount, 3);
    const Bytes wanted = expected(type, ReduceOp::kAverage, inputs.at, kCount, 3);
    CHECK(difference(type, got, wanted) == "");
  }
}

TEST_CASE("reduction: the result may be any of the inputs") {
  std::mt19937_64 random(3);
  constexpr size_t kCount = 133;
  each_reduction([&](DataType type, ReduceOp op) {
    CAPTURE(std::string(name_of(type)));
    CAPTURE(std::string(name_of(op)));
    for (const size_t n : {1, 2, 5}) {
      for (size_t k = 0; k < n; ++k) {
        for (const Kernels* const kernels : usable_kernels()) {
          Inputs inputs(type, n, kCount, random);
          const Bytes wanted = expected(type, op, inputs.at, kCount, 7);
          std::byte* const result = inputs.bytes[k].data() + 1 + k % 3;
          reduce_with(*kernels, type, op, inputs.at, result, kCount, 7);
          CHECK(difference(type, {result, result + wanted.size()}, wanted) == "");
        }
      }
    }
  });
}

TEST_CASE("reduction: nothing is touched where there is nothing") {
  for (const Kernels* const kernels : usable_kernels()) {
    std::byte one{3};
    const std::byte* const in[] = {&one, &one};
    reduce_with(*kernels, DataType::kInt8, ReduceOp::kAverage, in, &one, 0, 2);
    scale_with(*kernels, DataType::kFloat8E5m2, 2, &one, &one, 0);
    CHECK(one == std::byte{3});
  }
}

// All bit patterns of a type, each `repeat` times.
Bytes patterns(DataType type, size_t repeat) {
  const size_t size = size_of(type);
  Bytes all((repeat << (8 * size)) * size);
  for (size_t i = 0; i * size < all.size(); ++i) std::memcpy(all.data() + i * size, &i, size);
  return all;
}

TEST_CASE("reduction: every bit pattern of a small float, with every other of 8 bits") {
  for (const DataType type : kSmallFloats) {
    CAPTURE(std::string(name_of(type)));
    const size_t size = size_of(type);
    const Bytes a = patterns(type, size == 1 ? 256 : 1);
    Bytes b(a.size());
    for (size_t i = 0; i * size < b.size(); ++i) {
      const size_t other = size == 1 ? i / 256 : i * 40'503;
      std::memcpy(b.data() + i * size, &other, size);
    }
    const std::vector<const std::byte*> in = {a.data(), b.data()};
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      CAPTURE(std::string(name_of(op)));
      const Bytes wanted = expected(type, op, in, a.size() / size, 2);
      for (const Kernels* const kernels : usable_kernels()) {
        CAPTURE(std::string(kernels->instruction_set));
        Bytes got(a.size());
        reduce_with(*kernels, type, op, in, got.data(), a.size() / size, 2);
        CHECK(difference(type, got, wanted) == "");
      }
    }
  }
}

TEST_CASE("reduction: every bit pattern of a small float, times a factor, is rounded to even") {
  // Halves and the like meet ties among denormals; what is just beside 1 and 1.5 does among others.
  constexpr double kFactors[] = {
      1,          0.5,       0.25,   -1.5,    1.0009765625, 1.0078125, 1.0625, 1.125, 1.1249999,
      1.12500012, 3.0000001, 0x1p-9, 0x1p-17, 0x1.8p-130,   65504,     1e30,   1e-30, 1e300,
      INFINITY,   NAN,       0,      -0.0};
  for (const DataType type : kSmallFloats) {
    CAPTURE(std::string(name_of(type)));
    const Format format = format_of(type);
    const size_t size = size_of(type);
    const Bytes all = patterns(type, 1);
    for (const double factor : kFactors) {
      CAPTURE(factor);
      Bytes wanted(all.size());
      for (size_t i = 0; i * size < all.size(); ++i) {
        const auto value = static_cast<float>(decoded(format, i));
        const uint64_t bits = encoded(format, value * static_cast<float>(factor));
        std::memcpy(wanted.data() + i * size, &bits, size);
      }
      for (const Kernels* const kernels : usable_kernels()) {
        CAPTURE(std::string(kernels->instruction_set));
        Bytes got(all.size());
        scale_with(*kernels, type, factor, all.data(), got.data(), all.size() / size);
        CHECK(difference(type, got, wanted) == "");
      }
    }
  }
}

TEST_CASE("reduction: floats of 16 bits are widened, and rounded back, in their order") {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    CAPTURE(std::string(name_of(type)));
    const Format format = format_of(type);
    const Bytes all = patterns(type, 1);
    for (const size_t count : {all.size() / 2, size_t{1}, size_t{37}}) {
      for (const Kernels* const kernels : usable_kernels()) {
        CAPTURE(std::string(kernels->instruction_set));
        std::vector<float> wide(count + 1, 7);
        kernels->widen[static_cast<size_t>(type)](all.data(), wide.data(), count);
        CHECK(wide[count] == 7);
        Bytes wanted(count * 2), back(count * 2 + 1, std::byte{0x5a});
        size_t wrong = 0;
        for (size_t i = 0; i < count; ++i) {
          const auto value = static_cast<float>(decoded(format, i));
          wrong += std::isnan(value) ? !std::isnan(wide[i]) : wide[i] != value;
          wide[i] *= 1.0003F;
          const uint64_t bits = encoded(format, wide[i]);
          std::memcpy(wanted.data() + i * 2, &bits, 2);
        }
        CHECK(wrong == 0);
        kernels->narrow[static_cast<size_t>(type)](wide.data(), back.data(), count);
        CHECK(back.back() == std::byte{0x5a});
        back.pop_back();
        CHECK(difference(type, back, wanted) == "");
      }
    }
  }
}

template <class Real>
std::vector<Real> scaled(DataType type, double factor, std::vector<Real> values) {
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  scale(type, factor, data, data, values.size());
  return values;
}

TEST_CASE("reduction: float64 is scaled in double, float32 in float") {
  CHECK(scaled<double>(DataType::kFloat64, 1.0 / 3, {3, 1, 0x1p-1074}) ==
        std::vector<double>{3 * (1.0 / 3), 1.0 / 3, 0});
  CHECK(scaled<float>(DataType::kFloat32, 1.0 / 3, {5, 1}) ==
        std::vector<float>{5 * (1.0F / 3), 1.0F / 3});
}

template <class Value>
Value reduced_pair(ReduceOp op, DataType type, Value a, Value b, unsigned ranks = 1) {
  const std::byte* const in[] = {reinterpret_cast<const std::byte*>(&a),
                                 reinterpret_cast<const std::byte*>(&b)};
  Value result;
  reduce(type, op, in, reinterpret_cast<std::byte*>(&result), 1, ranks);
  return result;
}

TEST_CASE("reduction: what is documented of NaN, zeros, denormals and integers") {
  const auto bits = [](ReduceOp op, float a, float b) {
    return std::bit_cast<uint32_t>(reduced_pair(op, DataType::kFloat32, a, b));
  };
  CHECK(bits(ReduceOp::kMin, 1, -NAN) == 0x7fc00000);
  CHECK(bits(ReduceOp::kMax, std::bit_cast<float>(0xff800001), 1) == 0x7fc00000);
  CHECK(bits(ReduceOp::kSum, INFINITY, -INFINITY) == 0x7fc00000);
  CHECK(bits(ReduceOp::kMin, -0.0F, 0) == 0);
  CHECK(bits(ReduceOp::kMax, 0, -0.0F) == 0x80000000);
  CHECK(bits(ReduceOp::kSum, 0x1p-149F, 0x1p-149F) == 2);
  const auto int8 = [](ReduceOp op, int a, int b, unsigned ranks) {
    return int{
        reduced_pair(op, DataType::kInt8, static_cast<int8_t>(a), static_cast<int8_t>(b), ranks)};
  };
  CHECK(int8(ReduceOp::kAverage, -3, -4, 2) == -3);
  CHECK(int8(ReduceOp::kAverage, 3, 4, 200) == 0);
  CHECK(int8(ReduceOp::kSum, 127, 1, 1) == -128);
  CHECK(int8(ReduceOp::kMin, -1, 1, 1) == -1);
  CHECK(reduced_pair<uint8_t>(ReduceOp::kMin, DataType::kUint8, 255, 1) == 1);
  CHECK(reduced_pair<uint8_t>(ReduceOp::kSum, DataType::kBool, 1, 1) == 1);
}

// 464 is in the middle between 448, the largest, and 480, which would be NaN.
TEST_CASE("reduction: float8_e4m3fn has no infinity") {
  const auto times = [](uint8_t value, double factor) {
    auto byte = std::byte{value};
    scale(DataType::kFloat8E4m3, factor, &byte, &byte, 1);
    return std::to_integer<int>(byte);
  };
  constexpr uint8_t kOne = 0x38;
  CHECK(times(kOne, 448) == 0x7e);
  CHECK(times(kOne, 464) == 0x7e);
  CHECK(times(kOne, 464.001) == 0x7f);
  CHECK(times(kOne, -1e9) == 0x7f + 0x80);
  CHECK(times(0xff, 1) == 0x7f);
}

#if defined(__x86_64__)
TEST_CASE("reduction: how the calling thread rounds makes no difference, and stays") {
  constexpr unsigned kFlushed = 0xffc0;  // to zero, denormals are zeros, rounds towards zero
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kFlushed);
  const auto tiny = reduced_pair(ReduceOp::kSum, DataType::kFloat32, 0x1p-149F, 0x1p-149F);
  const auto rounded = reduced_pair(ReduceOp::kSum, DataType::kFloat32, 1.0F, 0x1.8p-24F);
  const unsigned after = _mm_getcsr() & ~0x3fU;
  _mm_setcsr(before);
  CHECK(std::bit_cast<uint32_t>(tiny) == 2);
  CHECK(rounded == 1 + 0x1p-23F);
  CHECK(after == kFlushed);
}
#endif

TEST_CASE("reduction: types and operations have names, and every reduction has a kernel") {
  CHECK(std::string(name_of(DataType::kBool)) == "bool");
  CHECK(std::string(name_of(DataType::kFloat8E4m3)) == "float8_e4m3fn");
  CHECK(std::string(name_of(ReduceOp::kBitXor)) == "bit_xor");
  CHECK(std::string(name_of(ReduceOp::kAdasum)) == "adasum");
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const Kernels* const kernels : usable_kernels()) {
        CHECK((kernels->of(type, op) != nullptr) == reducible(type, op));
      }
    }
  }
}

}  // namespace
}  // namespace tw
