// SPDX-License-Identifier: Apache-2.0
// Arrays of several ranks to one, element by element.
//
// The bits of a result depend on nothing but the values and their order: they are the same for
// every instruction set, every split of the arrays, and whatever modes of rounding and of denormals
// the calling thread is in.
#pragma once

#include <cstddef>
#include <span>

#include "collective/data_type.h"
#include "collective/kernels.h"

namespace tw {

// result[i] = in[0][i] op in[1][i] op ... op in[n-1][i] for i < count, folded from the left; n >=
// 1, and reducible(type, op), but not kAdasum. kAverage divides by `ranks` after the sum: floats
// are multiplied by 1/ranks, integers are truncated towards zero. Other operations ignore `ranks`.
//
// Integers wrap. For bools sum and max are "or", product and min "and". Floats of 16 and 8 bits are
// accumulated as float32 and rounded once, to the nearest, ties to even; what is too large becomes
// infinity, or NaN of the same sign in float8_e4m3fn, which has no infinity. Denormals are kept.
// One NaN makes the result NaN, of min and max, too: always the same one, with its sign clear and
// of the fraction only the highest bit set (all of them in float8_e4m3fn, which has no other). Of
// zeros of both signs min and max give the last. One input alone is copied as it is, except by
// kAverage.
//
// `result` may be one of `in`; no other memory overlaps. Nothing needs to be aligned.
void reduce(DataType type, ReduceOp op, std::span<const std::byte* const> in, std::byte* result,
            size_t count, unsigned ranks);

// result[i] = in[i] * factor, of floats: in double for kFloat64, for the others in float, to which
// `factor` is rounded. The two arrays are the same one or apart.
void scale(DataType type, double factor, const std::byte* in, std::byte* result, size_t count);

// Of kFloat16 and kBfloat16: as floats of 32 bits, and back, rounded to the nearest, ties to even.
void widen(DataType type, const std::byte* in, float* out, size_t count);
void narrow(DataType type, const float* in, std::byte* out, size_t count);

// With the kernels of one instruction set, for tests.
void reduce_with(const Kernels& kernels, DataType type, ReduceOp op,
                 std::span<const std::byte* const> in, std::byte* result, size_t count,
                 unsigned ranks);
void scale_with(const Kernels& kernels, DataType type, double factor, const std::byte* in,
                std::byte* result, size_t count);

}  // namespace tw
