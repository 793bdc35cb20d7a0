// SPDX-License-Identifier: Apache-2.0
// For what every machine of the kind has: SSE2 on x86-64, NEON on 64-bit Arm.
#define TW_VECTOR_BYTES 16
#include "collective/kernel_loops.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tw {
namespace {

#if defined(__aarch64__)

struct NeonFloat16 : AnyMayBeNan {
  TW_INLINE static Floats widened(HalfVector half) {
    return (Floats)vcvt_f32_f16((float16x4_t)half);
  }
  TW_INLINE static HalfVector narrowed(Floats value) {
    return (HalfVector)vcvt_f16_f32((float32x4_t)value);
  }
  TW_INLINE static HalfVector low(HalfWords both) {
    return (HalfVector)vget_low_u16((uint16x8_t)both);
  }
  TW_INLINE static HalfVector high(HalfWords both) {
    return (HalfVector)vget_high_u16((uint16x8_t)both);
  }
  TW_INLINE static HalfWords joined(HalfVector low, HalfVector high) {
    return (HalfWords)vcombine_u16((uint16x4_t)low, (uint16x4_t)high);
  }
};

#endif

}  // namespace

#if defined(__aarch64__)
constexpr Kernels kBaselineKernels = kernels_of_this_unit<PackedFormats<NeonFloat16>>("NEON");
#elif defined(__x86_64__)
constexpr Kernels kBaselineKernels = kernels_of_this_unit<SplitFormats>("SSE2");
#else
constexpr Kernels kBaselineKernels = kernels_of_this_unit<SplitFormats>("baseline");
#endif

}  // namespace tw
