// SPDX-License-Identifier: Apache-2.0
// How an operation over messages goes.
#pragma once

#include <cstddef>

#include "collective/collective_call.h"
#include "collective/tally.h"
#include "collective/tuning.h"

namespace tw::collective {

// The one for this operation between so many ranks; kNone where there is but one way. `forced`, of
// all-reduces (kNone: nothing), and else what was `tuned`, is taken where it gives what Fabric
// promises: floats of 16 and 8 bits are rounded once, so that where all ranks get sums they go by
// kDirect or kPairwise.
Algorithm choose_algorithm(const CollectiveCall& call, int ranks, Algorithm forced,
                           const Ways& tuned = {});

// Floats whose sums are rounded to less than they are added up in.
constexpr bool rounds(DataType type) { return is_float(type) && size_of(type) < 4; }

}  // namespace tw::collective
