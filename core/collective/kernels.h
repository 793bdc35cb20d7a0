// SPDX-License-Identifier: Apache-2.0
// The loops of reductions, compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <span>

#include "collective/data_type.h"

namespace tw {

// Folds bytes [begin, end) of the n arrays `in` into `result` and, unless it is null, into `also`.
// Sums of floats are multiplied by `factor`.
using FoldKernel = void (*)(const std::byte* const* in, size_t n, std::byte* result,
                            std::byte* also, size_t begin, size_t end, double factor);

struct Kernels {
  const char* instruction_set;
  // Null where there is no such reduction. kAverage has the kernels of kSum.
  FoldKernel fold[kDataTypes][kReduceOps];

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
