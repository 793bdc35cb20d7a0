// SPDX-License-Identifier: Apache-2.0
// The loops of reductions, compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <span>

#include "collective/data_type.h"

namespace tw {

// Folds bytes [begin, end) of the n arrays `in` into `result`. Sums of floats are multiplied by
// `factor`.
using FoldKernel = void (*)(const std::byte* const* in, size_t n, std::byte* result, size_t begin,
                            size_t end, double factor);

// `count` floats of 16 bits as those of 32, and back: rounded to the nearest, ties to even.
using WidenKernel = void (*)(const std::byte* in, float* out, size_t count);
using NarrowKernel = void (*)(const float* in, std::byte* out, size_t count);

struct Kernels {
  const char* instruction_set;
  // Null where there is no such reduction. kAverage has the kernels of kSum.
  FoldKernel fold[kDataTypes][kReduceOps];
  // Of kFloat16 and kBfloat16.
  WidenKernel widen[kDataTypes];
  NarrowKernel narrow[kDataTypes];

  FoldKernel of(DataType type, ReduceOp op) const {
    return fold[static_cast<size_t>(type)][static_cast<size_t>(op)];
  }
};

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif

// Those that this machine can run, the best last.
std::span<const Kernels* const> usable_kernels();

}  // namespace tw
