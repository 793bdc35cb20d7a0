// SPDX-License-Identifier: Apache-2.0
// The algorithms by which operations of ranks without common memory go: a file each.
#pragma once

#include "collective/part.h"
#include "collective/reduction.h"
#include "collective/steps/steps.h"

namespace tw::collective::steps {

inline constexpr int kAllRanks = -1;

// All send all they have, and each reduces by itself: one step, for little data and few ranks.
// `root`: the only one that reduces, or kAllRanks.
Status direct(Messages& messages, int root, const std::byte* in, std::byte* out);

// Each rank reduces one part of the array, which all send it, and sends the result to all, or to
// `root`: as many bytes as along a ring, in two steps instead of 2(n-1), in the order of ranks.
Status pairwise(Messages& messages, int root, const std::byte* in, std::byte* out);

// Along a ring, scatter-reduce and all-gather (P. Patarasuk and X. Yuan, JPDC 2009; A. Gibiansky,
// Baidu 2017): each rank speaks to its two neighbours alone.
Status ring(Messages& messages, const std::byte* in, std::byte* out);

// Pairs whose distance doubles reduce all they have: log2(n) steps of the whole array (R. Thakur,
// R. Rabenseifner, W. Gropp, IJHPCA 2005).
Status recursive_doubling(Messages& messages, const std::byte* in, std::byte* out);

// Pairs whose distance halves reduce halves of what they have left, and then hand back results in
// the opposite order (Rabenseifner's; the same paper): as many bytes as the ring in 2 log2(n)
// steps.
Status halving_doubling(Messages& messages, const std::byte* in, std::byte* out);

// A reduce-scatter in one step, in the order of ranks: each rank reduces what all send it.
Status direct_reduce_scatter(Messages& messages, const std::byte* in, std::byte* out);

// The first half of an all-reduce along a ring: as many bytes, from one neighbour to the other.
Status ring_reduce_scatter(Messages& messages, const std::byte* in, std::byte* out);

// The second half: `out` has this rank's share at its place.
Status ring_all_gather(Messages& messages, std::byte* out);

// A broadcast along a binomial tree, in chunks that a rank hands on as they come: log2(n) steps,
// and the root sends all of it as often.
Status tree(Messages& messages, int root, std::byte* data);

// A broadcast in which the root gives each of the others a part, which that one hands on to the
// rest (after M. Barnett et al., "Interprocessor collective communication library", SHPCC 1994, and
// R. van de Geijn): two steps, and no rank sends or gets more bytes than there are.
Status scatter_all_gather(Messages& messages, int root, std::byte* data);

// The greatest power of two that is not above n, and who takes part in algorithms for powers of
// two: of the first 2(n - power) ranks every odd one hands its array to the even one before it.
struct PowerOfTwo {
  explicit PowerOfTwo(const Team& team);
  // A place among those that take part to one in the team.
  int rank_at(int at) const { return at < extra ? 2 * at : at + extra; }

  int size;   // how many take part
  int extra;  // how many hand over
  int place;  // of this rank; -1: it hands over
};

// result = lower op upper, of arrays of `count`; the last reduction makes an average of the sum.
void combine(const Messages& messages, const std::byte* lower, const std::byte* upper,
             std::byte* result, size_t count, bool last);

}  // namespace tw::collective::steps
