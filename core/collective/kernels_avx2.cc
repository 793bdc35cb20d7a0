// SPDX-License-Identifier: Apache-2.0
// For processors with AVX2 and F16C.
#if defined(__x86_64__)

#include <immintrin.h>

#define TW_VECTOR_BYTES 32
#include "collective/kernel_loops.h"

namespace tw {
namespace {

struct F16c {
  TW_INLINE static Words unordered(Floats a, Floats b) {
    return (Words)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q);
  }
  TW_INLINE static bool any(Words found) { return _mm256_movemask_ps((__m256)found) != 0; }
  TW_INLINE static Floats widened(HalfVector half) {
    return (Floats)_mm256_cvtph_ps((__m128i)half);
  }
  TW_INLINE static HalfVector narrowed(Floats value) {
    return (HalfVector)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
  }
  TW_INLINE static HalfVector low(HalfWords both) {
    return (HalfVector)_mm256_castsi256_si128((__m256i)both);
  }
  TW_INLINE static HalfVector high(HalfWords both) {
    return (HalfVector)_mm256_extracti128_si256((__m256i)both, 1);
  }
  TW_INLINE static HalfWords joined(HalfVector low, HalfVector high) {
    return (HalfWords)_mm256_set_m128i((__m128i)high, (__m128i)low);
  }
};

}  // namespace

constexpr Kernels kAvx2Kernels = kernels_of_this_unit<PackedFormats<F16c>>("AVX2");

}  // namespace tw

#endif
