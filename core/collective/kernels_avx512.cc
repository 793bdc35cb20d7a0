// SPDX-License-Identifier: Apache-2.0
// For processors with AVX-512: F, DQ, BW and VL.
#if defined(__x86_64__)

#include <immintrin.h>

#define TW_VECTOR_BYTES 64
#include "collective/kernel_loops.h"

namespace tw {
namespace {

// The forms with a mask, because GCC 12 warns of the others.
struct F16cOf512 {
  TW_INLINE static __mmask16 unordered(Floats a, Floats b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q);
  }
  TW_INLINE static bool any(__mmask16 found) { return found != 0; }
  TW_INLINE static Floats widened(HalfVector half) {
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)half);
  }
  TW_INLINE static HalfVector narrowed(Floats value) {
    return (HalfVector)_mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT);
  }
  TW_INLINE static HalfVector low(HalfWords both) {
    return (HalfVector)_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)both, 0);
  }
  TW_INLINE static HalfVector high(HalfWords both) {
    return (HalfVector)_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)both, 1);
  }
  TW_INLINE static HalfWords joined(HalfVector low, HalfVector high) {
    return (HalfWords)_mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512((__m256i)low),
                                               (__m256i)high, 1);
  }
};

}  // namespace

constexpr Kernels kAvx512Kernels = kernels_of_this_unit<PackedFormats<F16cOf512>>("AVX-512");

}  // namespace tw

#endif
