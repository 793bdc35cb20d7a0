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
  TW_INLINE static Floats widened(HalfVector half) {
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)half);
  }
  TW_INLINE static HalfVector narrowed(Floats value) {
    return (HalfVector)_mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT);
  }
};

}  // namespace

constexpr Kernels kAvx512Kernels = kernels_of_this_unit<PackedFloat16<F16cOf512>>("AVX-512");

}  // namespace tw

#endif
