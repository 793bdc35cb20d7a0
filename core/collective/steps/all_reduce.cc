// SPDX-License-Identifier: Apache-2.0
#include "collective/steps/reductions.h"

namespace tw::collective::steps {
namespace {

// One step is the quickest for so much, or little, data; and the root of a reduce has all of it.
constexpr size_t kDirect = 16 << 10;

}  // namespace

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
    case Algorithm::kNone:
    case Algorithm::kPairwise:
      break;
  }
  return pairwise(messages, kAllRanks, in, out);
}

Status reduce(Messages& messages, int root, const std::byte* in, std::byte* out) {
  return messages.call().bytes() <= kDirect ? direct(messages, root, in, out)
                                            : pairwise(messages, root, in, out);
}

}  // namespace tw::collective::steps
