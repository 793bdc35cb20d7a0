// SPDX-License-Identifier: Apache-2.0
// For processors with AVX2 and F16C.
#if defined(__x86_64__)

#include <immintrin.h>

#define TW_VECTOR_BYTES 32
#include "collective/kernel_loops.h"

namespace tw {
namespace {

struct F16c {
  TW_INLINE static Floats widened(HalfVector half) {
    return (Floats)_mm256_cvtph_ps((__m128i)half);
  }
  TW_INLINE static HalfVector narrowed(Floats value) {
    return (HalfVector)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
  }
};

}  // namespace

constexpr Kernels kAvx2Kernels = kernels_of_this_unit<PackedFloat16<F16c>>("AVX2");

}  // namespace tw

#endif
