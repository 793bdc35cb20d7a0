// SPDX-License-Identifier: Apache-2.0
// Shares that ranks which speak for hosts move for the ranks of these: a block for each host, of
// any size, which lies in as many places as the array of all ranks has it.
//
// An operation makes several waves, each of a piece of every share. begin_...() sends what needs no
// answer, and whoever called it does something else until it calls end_...(), in which all that was
// begun leaves. What lies in blocks stays as it is meanwhile.
#pragma once

#include <span>

#include "collective/messages.h"
#include "collective/scattered.h"

namespace tw::collective::steps {

// By rank of the team, in the same order on all of them.
using Blocks = std::span<const Scattered>;

// blocks[i] is that of rank i, and lies on every rank at its place; this rank's is there already.
Status begin_all_gather(Messages& messages, Blocks blocks, Packed& packed);
Status end_all_gather(Messages& messages, Blocks blocks, Packed& packed);

// How elements of blocks are reduced: an average is one of `ranks`.
struct BlockReduction {
  DataType type;
  ReduceOp op;
  unsigned ranks;
};
// blocks[i] is what this rank adds to that of rank i, and is used up. `result`: this rank's block,
// in one place, which may be that of blocks[rank].
Status begin_reduce_scatter(Messages& messages, Blocks blocks, Packed& packed);
Status end_reduce_scatter(Messages& messages, Blocks blocks, Packed& packed,
                          const BlockReduction& how, std::byte* result);

// ---- the ways ----

// Straight to all others. Of an all-gather the block goes to each; of a reduce-scatter each gets
// its own, and reduces in the order of ranks.
Status give_block(Messages& messages, Blocks blocks, Packed& packed);
Status take_blocks(Messages& messages, Blocks blocks);
Status give_blocks(Messages& messages, Blocks blocks, Packed& packed);
Status reduce_block(Messages& messages, Blocks blocks, const BlockReduction& how,
                    std::byte* result);

// Along a ring: each rank speaks to its two neighbours alone.
Status ring_of_blocks(Messages& messages, Blocks blocks, Packed& packed);
Status ring_of_sums(Messages& messages, Blocks blocks, Packed& packed, const BlockReduction& how,
                    std::byte* result);

}  // namespace tw::collective::steps
