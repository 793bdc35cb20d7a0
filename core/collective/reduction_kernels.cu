// SPDX-License-Identifier: Apache-2.0
// Reductions on a device: what collective/reduction.h says, to the last bit. Compiled by NVRTC for
// one TW_TYPE and TW_OP, numbers of DataType and ReduceOp, and TW_SCALED, whether each array has a
// factor; a test compiles it for the host.

// collective::ReductionArguments.
struct Arguments {
  const unsigned char* in[16];
  unsigned char* out;
  double factors[16];
  unsigned long long count;
  unsigned inputs, ranks;
};

enum { kSum, kAverage, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

// ---- formats: how an element is stored, and what is computed with ----

template <class Element>
struct Integer {
  using Stored = Element;
  using Computed = Element;
  static constexpr bool kFloat = false;
  __device__ static Computed read(Stored stored) { return stored; }
  __device__ static Stored write(Computed value) { return value; }
};

struct Float64 {
  using Stored = double;
  using Computed = double;
  static constexpr bool kFloat = true;
  __device__ static Computed read(Stored stored) { return stored; }
  __device__ static Stored write(Computed value) {
    return value == value ? value : __longlong_as_double(0x7ff8000000000000);
  }
};

__device__ inline unsigned bits_with_one_nan(float value) {
  return value == value ? __float_as_uint(value) : 0x7fc00000u;
}

struct Float32 {
  using Stored = float;
  using Computed = float;
  static constexpr bool kFloat = true;
  __device__ static Computed read(Stored stored) { return stored; }
  __device__ static Stored write(Computed value) {
    return __uint_as_float(bits_with_one_nan(value));
  }
};

struct Bfloat16 {
  using Stored = unsigned short;
  using Computed = float;
  static constexpr bool kFloat = true;
  __device__ static Computed read(Stored stored) { return __uint_as_float((unsigned)stored << 16); }
  __device__ static Stored write(Computed value) {
    const unsigned bits = bits_with_one_nan(value);
    return (Stored)((bits + (bits >> 16 & 1) + 0x7fff) >> 16);
  }
};

// Floats of 1 + exponent_bits + fraction_bits bits.
template <class Bits, int exponent_bits, int fraction_bits, bool has_infinity>
struct Small {
  using Stored = Bits;
  using Computed = float;
  static constexpr bool kFloat = true;
  static constexpr int kBits = 1 + exponent_bits + fraction_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kShift = 23 - fraction_bits;
  static constexpr unsigned kRebias = unsigned{127 - kBias} << 23;
  // The smallest normal number, and of what would be the exponent above the largest.
  static constexpr unsigned kNormal = kRebias + (1u << 23);
  static constexpr unsigned kInfinity = ((1u << exponent_bits) - 1) << fraction_bits;
  static constexpr unsigned kLargest = has_infinity ? kInfinity : (1u << (kBits - 1)) - 1;
  static constexpr unsigned kNan = has_infinity ? kInfinity | 1u << (fraction_bits - 1) : kLargest;
  // A float whose unit in the last place is the smallest denormal.
  static constexpr unsigned kUnit = unsigned{127 + 1 - kBias + kShift} << 23;

  __device__ static Computed read(Stored stored) {
    const unsigned sign = (unsigned)(stored >> (kBits - 1)) << 31;
    const unsigned magnitude = (stored & ((1u << (kBits - 1)) - 1)) << kShift;
    unsigned bits = magnitude + kRebias;
    if (magnitude < 1u << 23)
      bits = __float_as_uint(__uint_as_float(magnitude + kNormal) - __uint_as_float(kNormal));
    else if (has_infinity && magnitude >= kLargest << kShift)
      bits += kRebias;
    else if (!has_infinity && magnitude == kLargest << kShift)
      bits = 0x7fc00000;
    return __uint_as_float(bits | sign);
  }
  __device__ static Stored write(Computed value) {
    const unsigned all = bits_with_one_nan(value), magnitude = all & 0x7fffffff;
    unsigned bits;
    if (magnitude < kNormal)
      bits = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(kUnit)) - kUnit;
    else
      bits =
          (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1)) >> kShift;
    if (bits > kLargest) bits = kLargest;
    if (has_infinity && magnitude == 0x7fc00000) bits = kNan;
    return (Stored)(bits | all >> 31 << (kBits - 1));
  }
};

template <int type>
struct FormatOf;
template <>
struct FormatOf<0> : Float64 {};
template <>
struct FormatOf<1> : Float32 {};
template <>
struct FormatOf<2> : Small<unsigned short, 5, 10, true> {};
template <>
struct FormatOf<3> : Bfloat16 {};
template <>
struct FormatOf<4> : Small<unsigned char, 4, 3, false> {};
template <>
struct FormatOf<5> : Small<unsigned char, 5, 2, true> {};
template <>
struct FormatOf<6> : Integer<signed char> {};
template <>
struct FormatOf<7> : Integer<short> {};
template <>
struct FormatOf<8> : Integer<int> {};
template <>
struct FormatOf<9> : Integer<long long> {};
template <>
struct FormatOf<10> : Integer<unsigned char> {};
template <>
struct FormatOf<11> : Integer<unsigned short> {};
template <>
struct FormatOf<12> : Integer<unsigned> {};
template <>
struct FormatOf<13> : Integer<unsigned long long> {};
constexpr int kBool = 14;
template <>
struct FormatOf<kBool> : Integer<unsigned char> {};

// ---- operations ----

// Of bools, what reductions are.
__device__ constexpr int meaning(int type, int op) {
  if (type != kBool) return op;
  return op == kSum || op == kMax ? kBitOr : op == kProduct || op == kMin ? kBitAnd : op;
}

template <int op, bool is_float, class Computed>
__device__ Computed apply(Computed a, Computed b) {
  using Wrapping = unsigned long long;
  if constexpr (op == kMin || op == kMax) {
    // A comparison with NaN is false: the second is taken where it is NaN, the first where that is.
    const Computed chosen = (op == kMin ? a < b : a > b) ? a : b;
    return a == a ? chosen : a;
  } else if constexpr (is_float) {
    return op == kProduct ? a * b : a + b;
  } else if constexpr (op == kSum || op == kAverage) {
    return (Computed)((Wrapping)a + (Wrapping)b);
  } else if constexpr (op == kProduct) {
    return (Computed)((Wrapping)a * (Wrapping)b);
  } else if constexpr (op == kBitAnd) {
    return (Computed)(a & b);
  } else if constexpr (op == kBitOr) {
    return (Computed)(a | b);
  } else {
    return (Computed)(a ^ b);
  }
}

// What one access to memory moves: several elements, where all arrays are so aligned.
constexpr int kVectorBytes = 16;
template <class Stored, int elements>
struct alignas(sizeof(Stored) * elements) Vector {
  Stored at[elements];
};

// What scale() of collective/reduction.h leaves of an element: rounded as it is stored.
template <class Format>
__device__ typename Format::Computed scaled_by(double factor, typename Format::Stored stored) {
  using Computed = typename Format::Computed;
  return Format::read(Format::write(Format::read(stored) * (Computed)factor));
}

// The elements of the vector of that number.
template <int type, int op, bool scaled, int elements>
__device__ void reduce_vector(const Arguments& arguments, unsigned long long number) {
  using Format = FormatOf<type>;
  using Stored = typename Format::Stored;
  using Computed = typename Format::Computed;
  using Stores = Vector<Stored, elements>;
  const auto value_of = [&](unsigned k, Stored stored) -> Computed {
    if constexpr (scaled)
      return scaled_by<Format>(arguments.factors[k], stored);
    else
      return Format::read(stored);
  };
  Computed folded[elements];
  Stores read = ((const Stores*)arguments.in[0])[number];
  for (int e = 0; e < elements; ++e) folded[e] = value_of(0, read.at[e]);
  for (unsigned k = 1; k < arguments.inputs; ++k) {
    read = ((const Stores*)arguments.in[k])[number];
    for (int e = 0; e < elements; ++e)
      folded[e] = apply<meaning(type, op), Format::kFloat>(folded[e], value_of(k, read.at[e]));
  }
  Stores written;
  for (int e = 0; e < elements; ++e) {
    if constexpr (op == kAverage) {
      if constexpr (Format::kFloat)
        folded[e] *= (Computed)(1.0 / arguments.ranks);
      else if constexpr ((Computed)-1 < (Computed)0)
        folded[e] = (Computed)((long long)folded[e] / (long long)arguments.ranks);
      else
        folded[e] = (Computed)((unsigned long long)folded[e] / arguments.ranks);
    }
    written.at[e] = Format::write(folded[e]);
  }
  ((Stores*)arguments.out)[number] = written;
}

__device__ inline bool whole_vectors(const Arguments& arguments) {
  unsigned long long addresses = (unsigned long long)arguments.out;
  for (unsigned k = 0; k < arguments.inputs; ++k)
    addresses |= (unsigned long long)arguments.in[k];
  return addresses % kVectorBytes == 0;
}

// What one of so many threads does.
template <int type, int op, bool scaled>
__device__ void reduce_part(const Arguments& arguments, unsigned long long thread,
                            unsigned long long threads) {
  constexpr int kElements = kVectorBytes / sizeof(typename FormatOf<type>::Stored);
  const unsigned long long vectors =
      whole_vectors(arguments) ? arguments.count / kElements : 0;
  for (unsigned long long i = thread; i < vectors; i += threads)
    reduce_vector<type, op, scaled, kElements>(arguments, i);
  for (unsigned long long i = vectors * kElements + thread; i < arguments.count; i += threads)
    reduce_vector<type, op, scaled, 1>(arguments, i);
}

#ifdef TW_TYPE
extern "C" __global__ void reduce(const Arguments arguments) {
  reduce_part<TW_TYPE, TW_OP, TW_SCALED>(
      arguments, (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x,
      (unsigned long long)gridDim.x * blockDim.x);
}
#endif
