// SPDX-License-Identifier: Apache-2.0
// Included by the kernels_*.cc, each of which is compiled for an instruction set and says how wide
// its vectors are. Everything here has internal linkage, and no function of the standard library is
// called: an inline function that was compiled for a newer processor must not be the copy that the
// linker keeps for all.
//
// Vectors are the compilers' own (GCC's "vector extensions"). A float of 16 or 8 bits is computed
// with as one of 32: those at every second or fourth place of a vector are shifted into a vector of
// floats, so that no lane is moved to another.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "collective/kernels.h"

#define TW_INLINE [[gnu::always_inline]] inline

namespace tw {
namespace {

template <class Element, size_t bytes>
struct VectorOf {
  typedef Element Type __attribute__((vector_size(bytes)));
};
template <class Element>
using Vector = typename VectorOf<Element, TW_VECTOR_BYTES>::Type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;
using SignedWords = Vector<int32_t>;
using HalfWords = Vector<uint16_t>;
// As many as there are Floats in a vector.
using HalfVector = VectorOf<uint16_t, TW_VECTOR_BYTES / 2>::Type;

template <class Vectors>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  Vectors vector;
};
template <class To>
TW_INLINE To vector_at(const std::byte* from) {
  return reinterpret_cast<const Unaligned<To>*>(from)->vector;
}
template <class From>
TW_INLINE void put(std::byte* to, const From& vector) {
  reinterpret_cast<Unaligned<From>*>(to)->vector = vector;
}

// a where the lanes of `mask` are all ones, b where they are 0. Without an instruction for it, GCC
// would take vectors apart.
template <class Mask, class Vectors>
TW_INLINE Vectors select(Mask mask, Vectors a, Vectors b) {
  if constexpr (TW_VECTOR_BYTES == 16) {
    return (Vectors)(((Mask)a & mask) | ((Mask)b & ~mask));
  } else {
    return mask ? a : b;
  }
}

template <class Vectors>
TW_INLINE Vectors one_nan(Vectors value, Vectors nan) {
  return select(value == value, value, nan);
}
TW_INLINE Floats one_nan(Floats value) { return one_nan(value, Floats{} + __builtin_nanf("")); }

// ---- the one NaN, where looking for any of several vectors is fast: NaNs are rare ----

template <class Hardware, size_t vectors>
TW_INLINE auto unordered(const Floats* of) {
  if constexpr (vectors > 2) {
    return Hardware::unordered(of[0], of[1]) | unordered<Hardware, vectors - 2>(of + 2);
  } else {
    return Hardware::unordered(of[0], of[1]);
  }
}
template <size_t vectors>
TW_INLINE void one_nan_each(Floats* of) {
  of[0] = one_nan(of[0]);
  if constexpr (vectors > 1) one_nan_each<vectors - 1>(of + 1);
}
// Where it is not fast, each vector is treated as if it had one.
struct AnyMayBeNan {
  TW_INLINE static uint32_t unordered(const Floats&, const Floats&) { return 1; }
  TW_INLINE static bool any(uint32_t found) { return found != 0; }
};

// ---- formats: how `kVectors` vectors to compute with are read and written ----

template <class Element>
struct Plain {
  using Computed = Vector<Element>;
  using Factor = Element;
  static constexpr size_t kVectors = 1;
  TW_INLINE static void read(const std::byte* from, Computed* to) {
    to[0] = vector_at<Computed>(from);
  }
  TW_INLINE static void write(std::byte* to, const Computed* from) { put(to, from[0]); }
};

struct Float32 : Plain<float> {
  TW_INLINE static void write(std::byte* to, const Floats* from) { put(to, one_nan(from[0])); }
};

struct Float64 : Plain<double> {
  TW_INLINE static void write(std::byte* to, const Computed* from) {
    put(to, one_nan(from[0], Computed{} + __builtin_nan("")));
  }
};

template <class Hardware>
struct Bfloat16 {
  using Nans = Hardware;
  using Computed = Floats;
  using Factor = float;
  static constexpr size_t kVectors = 2;
  static constexpr bool kInterleaved = true;
  TW_INLINE static void read(const std::byte* from, Floats* to) {
    const Words words = vector_at<Words>(from);
    to[0] = (Floats)(words << 16);
    to[1] = (Floats)(words & 0xffff0000);
  }
  TW_INLINE static void write(std::byte* to, const Floats* from) {
    put(to, rounded(from[0]) >> 16 | (rounded(from[1]) & 0xffff0000));
  }
  // In the upper half. The one NaN does not overflow.
  TW_INLINE static Words rounded(Floats value) {
    const Words bits = (Words)value;
    return (bits + 0x7fff) + (bits >> 16 & 1);
  }
};

// Floats of 1 + exponent_bits + fraction_bits bits, several in a word.
template <int exponent_bits, int fraction_bits, bool has_infinity>
struct Split {
  using Computed = Floats;
  using Factor = float;
  static constexpr int kBits = 1 + exponent_bits + fraction_bits;
  static constexpr size_t kVectors = 32 / kBits;
  static constexpr bool kInterleaved = true;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kShift = 23 - fraction_bits;
  static constexpr uint32_t kRebias = uint32_t{127 - kBias} << 23;
  // The smallest normal number, and of what would be the exponent above the largest.
  static constexpr uint32_t kNormal = kRebias + (1u << 23);
  static constexpr uint32_t kInfinity = ((1u << exponent_bits) - 1) << fraction_bits;
  static constexpr uint32_t kLargest = has_infinity ? kInfinity : (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kNan = has_infinity ? kInfinity | 1u << (fraction_bits - 1) : kLargest;
  // A float whose unit in the last place is the smallest denormal.
  static constexpr uint32_t kUnit = uint32_t{127 + 1 - kBias + kShift} << 23;

  TW_INLINE static void read(const std::byte* from, Floats* to) {
    const Words words = vector_at<Words>(from);
    to[0] = widened(words << (32 - kBits));
    to[1] = widened(words << (32 - kBits * 2));
    if constexpr (kVectors == 4) {
      to[2] = widened(words << 8);
      to[3] = widened(words);
    }
  }
  TW_INLINE static void write(std::byte* to, const Floats* from) {
    Words words = narrowed(from[0]) | narrowed(from[1]) << kBits;
    if constexpr (kVectors == 4) words |= narrowed(from[2]) << 16 | narrowed(from[3]) << 24;
    put(to, words);
  }

  // Of the highest bits of each word.
  TW_INLINE static Floats widened(Words words) {
    const Words sign = words & 0x80000000;
    const Words magnitude =
        (words & (((1u << (kBits - 1)) - 1) << (32 - kBits))) >> (9 - kBits + fraction_bits);
    Words normal = magnitude + kRebias;
    const Words largest = Words{} + (kLargest << kShift);
    if constexpr (has_infinity) {
      normal = select((SignedWords)magnitude >= (SignedWords)largest, normal + kRebias, normal);
    } else {
      normal = select(magnitude == largest, Words{} + 0x7fc00000, normal);
    }
    const Words least = Words{} + kNormal;
    const Floats denormal = (Floats)(magnitude + kNormal) - (Floats)least;
    const Words limit = Words{} + (1u << 23);
    const Words chosen =
        select((SignedWords)magnitude < (SignedWords)limit, (Words)denormal, normal);
    return (Floats)(chosen | sign);
  }

  // Into the lowest bits of each word, the others 0.
  TW_INLINE static Words narrowed(Floats value) {
    const Words bits = (Words)one_nan(value);
    const Words sign = (bits & 0x80000000) >> (32 - kBits);
    const Words magnitude = bits & 0x7fffffff;
    const Words unit = Words{} + kUnit;
    const Words denormal = (Words)((Floats)magnitude + (Floats)unit) - unit;
    const Words odd = magnitude >> kShift & 1;
    const Words normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const Words least = Words{} + kNormal, largest = Words{} + kLargest;
    Words chosen = select((SignedWords)magnitude < (SignedWords)least, denormal, normal);
    chosen = select((SignedWords)chosen > (SignedWords)largest, largest, chosen);
    if constexpr (has_infinity) {
      chosen = select(magnitude == 0x7fc00000, Words{} + kNan, chosen);
    }
    return chosen | sign;
  }
};

using SplitFloat16 = Split<5, 10, true>;
using Float8E4m3 = Split<4, 3, false>;
using Float8E5m2 = Split<5, 2, true>;

// With conversions of the hardware, which are of HalfVectors, the halves of HalfWords.
template <class Hardware>
struct PackedFloat16 {
  using Nans = Hardware;
  using Computed = Floats;
  using Factor = float;
  static constexpr size_t kVectors = 2;
  static constexpr bool kInterleaved = false;
  TW_INLINE static void read(const std::byte* from, Floats* to) {
    to[0] = Hardware::widened(vector_at<HalfVector>(from));
    to[1] = Hardware::widened(vector_at<HalfVector>(from + sizeof(HalfVector)));
  }
  TW_INLINE static void write(std::byte* to, const Floats* from) {
    put(to, Hardware::narrowed(from[0]));
    put(to + sizeof(HalfVector), Hardware::narrowed(from[1]));
  }
};

// Floats of 8 bits as the upper bytes of float16s: those of float8_e5m2 are just that, those of
// float8_e4m3fn with another exponent, which a factor mends.
template <class Hardware, class Format>
struct PackedFloat8 {
  using Computed = Floats;
  using Factor = float;
  static constexpr size_t kVectors = 4;
  static constexpr bool kSameExponent = Format::kBias == 15;
  TW_INLINE static void read(const std::byte* from, Floats* to) {
    const HalfWords words = vector_at<HalfWords>(from);
    read_upper(words << 8, to);
    read_upper(words & 0xff00, to + 2);
  }
  TW_INLINE static void write(std::byte* to, const Floats* from) {
    put(to, upper(from) >> 8 | upper(from + 2));
  }

  TW_INLINE static void read_upper(HalfWords halves, Floats* to) {
    if constexpr (!kSameExponent) {
      const HalfWords magnitude = halves & 0x7f00;
      halves = (halves & 0x8000) | magnitude >> 1 | ((HalfWords)(magnitude == 0x7f00) & 0x7e00);
    }
    to[0] = Hardware::widened(Hardware::low(halves));
    to[1] = Hardware::widened(Hardware::high(halves));
    if constexpr (!kSameExponent) {
      to[0] *= 0x1p8f;
      to[1] *= 0x1p8f;
    }
  }
  TW_INLINE static HalfWords upper(const Floats* from) {
    if constexpr (kSameExponent) {
      return Hardware::joined(Hardware::narrowed(rounded(one_nan(from[0]))),
                              Hardware::narrowed(rounded(one_nan(from[1])))) &
             0xff00;
    } else {
      const HalfWords halves =
          Hardware::joined(Hardware::narrowed(rounded(limited(from[0])) * 0x1p-8f),
                           Hardware::narrowed(rounded(limited(from[1])) * 0x1p-8f));
      return halves << 1 | (halves & 0x8000);
    }
  }
  // What is read as NaN would be 480.
  TW_INLINE static Floats limited(Floats value) {
    const Floats limit = Floats{} + 480.0f;
    value = select(value < limit, value, limit);
    return select(value > -limit, value, -limit);
  }
  // To the nearest that the format has, but for its largest: adding a number whose unit in the last
  // place is the format's at this exponent rounds, once.
  TW_INLINE static Floats rounded(Floats value) {
    const Words bits = (Words)value;
    const Words least = Words{} + Format::kNormal, most = Words{} + (uint32_t{127 + 20} << 23);
    Words exponent = bits & 0x7f800000;
    exponent = select((SignedWords)exponent > (SignedWords)least, exponent, least);
    exponent = select((SignedWords)exponent < (SignedWords)most, exponent, most);
    const Floats unit = (Floats)(exponent + ((uint32_t{Format::kShift} << 23) + 0x400000));
    return (Floats)((Words)((value + unit) - unit) | (bits & 0x80000000));
  }
};

// ---- operations ----

struct Sum {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    return a + b;
  }
};
struct Product {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    return a * b;
  }
};
// A comparison with NaN is false: the second is taken where it is NaN, the first where that is.
struct Min {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    const T least = select(a < b, a, b);
    return select(a == a, least, a);
  }
};
struct Max {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    const T most = select(a > b, a, b);
    return select(a == a, most, a);
  }
};
struct BitAnd {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    return a & b;
  }
};
struct BitOr {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    return a | b;
  }
};
struct BitXor {
  template <class T>
  TW_INLINE static T apply(const T& a, const T& b) {
    return a ^ b;
  }
};

// ---- the loop ----

// Written as recursions, so that a block is in registers however much a compiler optimises.
template <class Format, size_t reads>
TW_INLINE void read_block(const std::byte* from, typename Format::Computed* to) {
  Format::read(from, to);
  if constexpr (reads > 1) {
    read_block<Format, reads - 1>(from + TW_VECTOR_BYTES, to + Format::kVectors);
  }
}
template <class Format, size_t writes>
TW_INLINE void write_block(std::byte* to, const typename Format::Computed* from) {
  Format::write(to, from);
  if constexpr (writes > 1) {
    write_block<Format, writes - 1>(to + TW_VECTOR_BYTES, from + Format::kVectors);
  }
}
template <class Op, size_t vectors, class Computed>
TW_INLINE void apply(Computed* into, const Computed* next) {
  into[0] = Op::apply(into[0], next[0]);
  if constexpr (vectors > 1) apply<Op, vectors - 1>(into + 1, next + 1);
}
template <class Format, class Op, size_t reads>
TW_INLINE void fold_block(const std::byte* from, typename Format::Computed* into) {
  typename Format::Computed next[Format::kVectors];
  Format::read(from, next);
  apply<Op, Format::kVectors>(into, next);
  if constexpr (reads > 1) {
    fold_block<Format, Op, reads - 1>(from + TW_VECTOR_BYTES, into + Format::kVectors);
  }
}
template <class Format, size_t vectors>
TW_INLINE void one_nan_block(typename Format::Computed* values) {
  if constexpr (requires { typename Format::Nans; }) {
    if (Format::Nans::any(unordered<typename Format::Nans, vectors>(values))) [[unlikely]] {
      one_nan_each<vectors>(values);
    }
  }
}
template <size_t vectors, class Computed>
TW_INLINE void scale_block(Computed* values, const Computed& factor) {
  values[0] *= factor;
  if constexpr (vectors > 1) scale_block<vectors - 1>(values + 1, factor);
}

// Into the second cache. Of what is not there yet a core has only so many loads under way as its
// window of instructions holds: few, where there is much to compute.
constexpr size_t kAhead = 2048;
template <size_t bytes>
TW_INLINE void prefetch(const std::byte* from) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// A block of several vectors is folded in registers, so that each input is read once, however many
// there are. The last block is padded.
template <class Format, class Op, bool scaled = false>
void fold(const std::byte* const* in, size_t n, std::byte* result, size_t begin, size_t end,
          [[maybe_unused]] double factor) {
  if constexpr (scaled) {
    if (factor == 1) return fold<Format, Op>(in, n, result, begin, end, factor);
  }
  using Computed = typename Format::Computed;
  constexpr size_t kReads = 4 / Format::kVectors;
  constexpr size_t kBlock = kReads * TW_VECTOR_BYTES;
  constexpr size_t kVectors = kReads * Format::kVectors;
  std::byte padded[kBlock] = {};
  // Subtracting 0 changes nothing, not even -0.
  [[maybe_unused]] Computed multiplier = {};
  if constexpr (scaled) multiplier = static_cast<typename Format::Factor>(factor) - multiplier;
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t size = end - at;
    const auto block_of = [&](size_t k) __attribute__((always_inline)) {
      if (size >= kAhead) [[likely]]
        prefetch<kBlock>(in[k] + at + kAhead);
      if (size >= kBlock) [[likely]]
        return in[k] + at;
      __builtin_memcpy(padded, in[k] + at, size);
      return static_cast<const std::byte*>(padded);
    };
    Computed folded[kVectors];
    read_block<Format, kReads>(block_of(0), folded);
    for (size_t k = 1; k < n; ++k) fold_block<Format, Op, kReads>(block_of(k), folded);
    if constexpr (scaled) scale_block<kVectors>(folded, multiplier);
    one_nan_block<Format, kVectors>(folded);
    if (size >= kBlock) [[likely]] {
      write_block<Format, kReads>(result + at, folded);
    } else {
      write_block<Format, kReads>(padded, folded);
      __builtin_memcpy(result + at, padded, size);
    }
  }
}

// ---- floats of 16 bits, in their order ----

// The place among the floats of a block, which lie one vector after the other, of its element `i`.
template <class Format>
TW_INLINE constexpr size_t place_of(size_t i) {
  constexpr size_t kLanes = sizeof(Floats) / sizeof(float);
  return Format::kInterleaved ? i % Format::kVectors * kLanes + i / Format::kVectors : i;
}

template <class Format>
void widen(const std::byte* in, float* out, size_t count) {
  constexpr size_t kBlock = TW_VECTOR_BYTES / 2;
  std::byte padded[TW_VECTOR_BYTES] = {};
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = count - at < kBlock ? count - at : kBlock;
    const std::byte* from = in + at * 2;
    if (n < kBlock) {
      __builtin_memcpy(padded, from, n * 2);
      from = padded;
    }
    Floats block[Format::kVectors];
    Format::read(from, block);
    float values[kBlock];
    __builtin_memcpy(values, block, sizeof values);
    for (size_t i = 0; i < n; ++i) out[at + i] = values[place_of<Format>(i)];
  }
}

template <class Format>
void narrow(const float* in, std::byte* out, size_t count) {
  constexpr size_t kBlock = TW_VECTOR_BYTES / 2;
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = count - at < kBlock ? count - at : kBlock;
    float values[kBlock] = {};
    for (size_t i = 0; i < n; ++i) values[place_of<Format>(i)] = in[at + i];
    Floats block[Format::kVectors];
    __builtin_memcpy(block, values, sizeof values);
    one_nan_block<Format, Format::kVectors>(block);
    std::byte written[TW_VECTOR_BYTES];
    Format::write(written, block);
    __builtin_memcpy(out + at * 2, written, n * 2);
  }
}

// ---- the table ----

constexpr void set(Kernels* kernels, DataType type, ReduceOp op, FoldKernel kernel) {
  kernels->fold[static_cast<size_t>(type)][static_cast<size_t>(op)] = kernel;
}

template <class Format>
constexpr void set_floats(Kernels* kernels, DataType type) {
  set(kernels, type, ReduceOp::kSum, fold<Format, Sum, true>);
  set(kernels, type, ReduceOp::kAverage, fold<Format, Sum, true>);
  set(kernels, type, ReduceOp::kProduct, fold<Format, Product>);
  set(kernels, type, ReduceOp::kMin, fold<Format, Min>);
  set(kernels, type, ReduceOp::kMax, fold<Format, Max>);
}

template <class Format>
constexpr void set_conversions(Kernels* kernels, DataType type) {
  kernels->widen[static_cast<size_t>(type)] = widen<Format>;
  kernels->narrow[static_cast<size_t>(type)] = narrow<Format>;
}

constexpr void set_bitwise(Kernels* kernels, DataType type) {
  set(kernels, type, ReduceOp::kBitAnd, fold<Plain<uint32_t>, BitAnd>);
  set(kernels, type, ReduceOp::kBitOr, fold<Plain<uint32_t>, BitOr>);
  set(kernels, type, ReduceOp::kBitXor, fold<Plain<uint32_t>, BitXor>);
}

// Sums and products of signed integers are those of unsigned ones, which wrap.
template <class Signed, class Unsigned>
constexpr void set_integers(Kernels* kernels, DataType of_signed, DataType of_unsigned) {
  for (const DataType type : {of_signed, of_unsigned}) {
    set(kernels, type, ReduceOp::kSum, fold<Plain<Unsigned>, Sum>);
    set(kernels, type, ReduceOp::kAverage, fold<Plain<Unsigned>, Sum>);
    set(kernels, type, ReduceOp::kProduct, fold<Plain<Unsigned>, Product>);
    set_bitwise(kernels, type);
  }
  set(kernels, of_signed, ReduceOp::kMin, fold<Plain<Signed>, Min>);
  set(kernels, of_signed, ReduceOp::kMax, fold<Plain<Signed>, Max>);
  set(kernels, of_unsigned, ReduceOp::kMin, fold<Plain<Unsigned>, Min>);
  set(kernels, of_unsigned, ReduceOp::kMax, fold<Plain<Unsigned>, Max>);
}

struct SplitFormats {
  using Bfloat16 = tw::Bfloat16<AnyMayBeNan>;
  using Float16 = SplitFloat16;
  using E4m3 = Float8E4m3;
  using E5m2 = Float8E5m2;
};
template <class Hardware>
struct PackedFormats {
  using Bfloat16 = tw::Bfloat16<Hardware>;
  using Float16 = PackedFloat16<Hardware>;
  using E4m3 = PackedFloat8<Hardware, Float8E4m3>;
  using E5m2 = PackedFloat8<Hardware, Float8E5m2>;
};

template <class Formats>
consteval Kernels kernels_of_this_unit(const char* instruction_set) {
  Kernels kernels{instruction_set, {}, {}, {}};
  set_floats<Float64>(&kernels, DataType::kFloat64);
  set_floats<Float32>(&kernels, DataType::kFloat32);
  set_floats<typename Formats::Float16>(&kernels, DataType::kFloat16);
  set_floats<typename Formats::Bfloat16>(&kernels, DataType::kBfloat16);
  set_floats<typename Formats::E4m3>(&kernels, DataType::kFloat8E4m3);
  set_floats<typename Formats::E5m2>(&kernels, DataType::kFloat8E5m2);
  set_conversions<typename Formats::Float16>(&kernels, DataType::kFloat16);
  set_conversions<typename Formats::Bfloat16>(&kernels, DataType::kBfloat16);
  set_integers<int8_t, uint8_t>(&kernels, DataType::kInt8, DataType::kUint8);
  set_integers<int16_t, uint16_t>(&kernels, DataType::kInt16, DataType::kUint16);
  set_integers<int32_t, uint32_t>(&kernels, DataType::kInt32, DataType::kUint32);
  set_integers<int64_t, uint64_t>(&kernels, DataType::kInt64, DataType::kUint64);
  set_bitwise(&kernels, DataType::kBool);
  set(&kernels, DataType::kBool, ReduceOp::kSum, fold<Plain<uint32_t>, BitOr>);
  set(&kernels, DataType::kBool, ReduceOp::kMax, fold<Plain<uint32_t>, BitOr>);
  set(&kernels, DataType::kBool, ReduceOp::kProduct, fold<Plain<uint32_t>, BitAnd>);
  set(&kernels, DataType::kBool, ReduceOp::kMin, fold<Plain<uint32_t>, BitAnd>);
  return kernels;
}

}  // namespace
}  // namespace tw
