// SPDX-License-Identifier: Apache-2.0
// Operations that can go several ways, by the one that all ranks have chosen.
#include <cstring>

#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

Status all_reduce(Messages& messages, const std::byte* in, std::byte* out) {
  switch (messages.algorithm()) {
    case Algorithm::kDirect:
      return direct(messages, kAllRanks, in, out);
    case Algorithm::kRing:
      return ring(messages, in, out);
    case Algorithm::kRecursiveDoubling:
      return recursive_doubling(messages, in, out);
    case Algorithm::kHalvingDoubling:
      return halving_doubling(messages, in, out);
    default:
      return pairwise(messages, kAllRanks, in, out);
  }
}

Status reduce(Messages& messages, int root, const std::byte* in, std::byte* out) {
  return messages.algorithm() == Algorithm::kDirect ? direct(messages, root, in, out)
                                                    : pairwise(messages, root, in, out);
}

Status broadcast(Messages& messages, int root, std::byte* data) {
  return messages.algorithm() == Algorithm::kScatterAllGather
             ? scatter_all_gather(messages, root, data)
             : tree(messages, root, data);
}

Status reduce_scatter(Messages& messages, const std::byte* in, std::byte* out) {
  return messages.algorithm() == Algorithm::kRing ? ring_reduce_scatter(messages, in, out)
                                                  : direct_reduce_scatter(messages, in, out);
}

Status all_gather(Messages& messages, const std::byte* in, std::byte* out) {
  const size_t bytes = messages.part().bytes();
  const auto self = static_cast<size_t>(messages.team().rank());
  if (std::byte* const own = out + self * bytes; own != in && bytes != 0)
    std::memcpy(own, in, bytes);
  if (messages.algorithm() == Algorithm::kRing) return ring_all_gather(messages, out);
  const auto ranks = static_cast<size_t>(messages.team().size());
  const Given gives(ranks, std::span(out + self * bytes, bytes));
  Taken takes(ranks);
  for (size_t i = 0; i < ranks; ++i) takes[i] = std::span(out + i * bytes, bytes);
  return exchange(messages, gives, takes);
}

}  // namespace tw::collective::steps
