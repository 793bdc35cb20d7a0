// SPDX-License-Identifier: Apache-2.0
// The kernels of devices, compiled for the host, give the bits of the host's.
#include "collective/device_reduction.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "collective/reduction.h"
#include "test/device/fake_driver.h"
#include "test/sanitized.h"

namespace {

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
#define __device__
#include "collective/reduction_kernels.cu"
#undef __device__

}  // namespace

namespace tw::test {
namespace {

using collective::DeviceReduction;
using collective::ReductionArguments;

static_assert(sizeof(Arguments) == sizeof(ReductionArguments));
static_assert(std::size(Arguments{}.in) == ReductionArguments::kMaxInputs);

template <int type, int op, bool scaled>
void fold_on_device(const Arguments& arguments) {
  for (unsigned thread = 0; thread < 3; ++thread)
    reduce_part<type, op, scaled>(arguments, thread, 3);
}
using Fold = void (*)(const Arguments&);
template <int type, int op, bool scaled>
constexpr Fold fold_of() {
  constexpr auto of = static_cast<DataType>(type);
  constexpr auto by = static_cast<ReduceOp>(op);
  constexpr bool sums = by == ReduceOp::kSum || by == ReduceOp::kAverage;
  if constexpr (by != ReduceOp::kAdasum && reducible(of, by) && (!scaled || (sums && is_float(of))))
    return fold_on_device<type, op, scaled>;
  else
    return nullptr;
}
template <bool scaled, size_t... numbers>
constexpr std::array<Fold, sizeof...(numbers)> folds(std::index_sequence<numbers...>) {
  return {fold_of<numbers / kReduceOps, numbers % kReduceOps, scaled>()...};
}
constexpr auto kNumbers = std::make_index_sequence<kDataTypes * kReduceOps>();
constexpr auto kFolds = folds<false>(kNumbers), kScaledFolds = folds<true>(kNumbers);

// All values of 8 bits and all of 16, many of the others: random bits, small numbers, whose sums
// need rounding, and what is special (zeros, denormals, infinities, NaNs).
std::vector<std::byte> values(DataType type, size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  const size_t width = size_of(type);
  std::vector<std::byte> made(count * width);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = width <= 2 && seed == 0 ? i : random();
    if (type == DataType::kBool) bits &= 1;
    if (width >= 4 && is_float(type)) {
      const int exponent = width == 4 ? 23 : 52;
      const uint64_t one = width == 4 ? 0x3f800000 : 0x3ff0000000000000;
      const uint64_t mask = width == 4 ? 0xff : 0x7ff;
      if (i % 4 != 0) bits = (bits & ~(mask << exponent)) + one + ((bits & 7) << exponent);
      if (i % 16 == 1) bits &= ~(mask << exponent);
      if (i % 64 == 2) bits |= mask << exponent;
      if (i % 64 == 3) bits = mask << exponent;
      if (i % 64 == 5) bits = 0;
    }
    std::memcpy(made.data() + i * width, &bits, width);
  }
  return made;
}

TEST_CASE("a device's kernels give the bits of the host's, for all types and reductions") {
  constexpr size_t kCount = (kSanitized ? 1 << 12 : 1 << 16) + 5;
  size_t tried = 0;
  for (size_t number = 0; number < kFolds.size(); ++number) {
    if (!kFolds[number]) continue;
    const auto type = static_cast<DataType>(number / kReduceOps);
    const auto op = static_cast<ReduceOp>(number % kReduceOps);
    for (const size_t inputs : {2, 3, 16}) {
      std::vector<std::vector<std::byte>> in;
      std::vector<const std::byte*> pointers;
      Arguments arguments{};
      for (unsigned k = 0; k < inputs; ++k) {
        in.push_back(values(type, kCount, k));
        pointers.push_back(in.back().data());
        arguments.in[k] = reinterpret_cast<const unsigned char*>(pointers.back());
      }
      // Three are not aligned alike, so that elements go one by one.
      const size_t off = inputs == 3 ? size_of(type) : 0;
      std::vector<std::byte> of_host(in[0].size()), of_device(in[0].size() + off);
      arguments.out = reinterpret_cast<unsigned char*>(of_device.data() + off);
      arguments.count = kCount;
      arguments.inputs = arguments.ranks = static_cast<unsigned>(inputs);
      kFolds[number](arguments);
      reduce(type, op, pointers, of_host.data(), kCount, arguments.ranks);
      CAPTURE(name_of(type));
      CAPTURE(name_of(op));
      CAPTURE(inputs);
      size_t wrong = 0;
      while (wrong < of_host.size() && of_host[wrong] == of_device[wrong + off]) ++wrong;
      CHECK(wrong == of_host.size());
      ++tried;
    }
  }
  CHECK(tried == 3 * (6 * 5 + 8 * 8 + 7));
}

TEST_CASE("a device's kernels scale as the host does, before they add up") {
  constexpr size_t kCount = (kSanitized ? 1 << 12 : 1 << 16) + 5, kInputs = 5;
  // One that floats have, one that they round, none, and two of which values become too large or
  // denormal.
  constexpr double kFactors[kInputs] = {0.5, 1.0 / 3, 1, -1e5, 1e-6};
  size_t tried = 0;
  for (size_t number = 0; number < kScaledFolds.size(); ++number) {
    if (!kScaledFolds[number]) continue;
    const auto type = static_cast<DataType>(number / kReduceOps);
    const auto op = static_cast<ReduceOp>(number % kReduceOps);
    std::vector<std::vector<std::byte>> in, scaled;
    std::vector<const std::byte*> pointers;
    Arguments arguments{};
    for (unsigned k = 0; k < kInputs; ++k) {
      in.push_back(values(type, kCount, k));
      scaled.push_back(in.back());
      scale(type, kFactors[k], scaled.back().data(), scaled.back().data(), kCount);
      pointers.push_back(scaled.back().data());
      arguments.in[k] = reinterpret_cast<const unsigned char*>(in.back().data());
      arguments.factors[k] = kFactors[k];
    }
    std::vector<std::byte> of_host(in[0].size()), of_device(in[0].size());
    arguments.out = reinterpret_cast<unsigned char*>(of_device.data());
    arguments.count = kCount;
    arguments.inputs = arguments.ranks = kInputs;
    kScaledFolds[number](arguments);
    reduce(type, op, pointers, of_host.data(), kCount, kInputs);
    CAPTURE(name_of(type));
    CAPTURE(name_of(op));
    CHECK(of_device == of_host);
    ++tried;
  }
  CHECK(tried == 6 * 2);
}

TEST_CASE("a kernel is compiled once for each device, type and reduction, and for factors") {
  FakeHost host;
  FakeDriver driver(host, 2);
  DeviceReduction reduction(driver);
  for (int i = 0; i < 3; ++i)
    for (int device = 0; device < 2; ++device) {
      CHECK(reduction.kernel(device, DataType::kFloat32, ReduceOp::kSum, false));
      CHECK(reduction.kernel(device, DataType::kFloat32, ReduceOp::kSum, true));
      CHECK(reduction.kernel(device, DataType::kBfloat16, ReduceOp::kMax, false));
    }
  CHECK(driver.calls("load") == 6);
  driver.fail("load", {Code::kFailedPrecondition, "no compiler"});
  CHECK(reduction.kernel(0, DataType::kInt8, ReduceOp::kSum, false).status().code() ==
        Code::kFailedPrecondition);
  CHECK(reduction.kernel(0, DataType::kInt8, ReduceOp::kSum, false));
}

}  // namespace
}  // namespace tw::test
