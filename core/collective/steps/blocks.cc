// SPDX-License-Identifier: Apache-2.0
// Waves of blocks, by the way that all ranks have chosen.
#include "collective/steps/blocks.h"

namespace tw::collective::steps {
namespace {

Status leave(Messages& messages, Packed& packed) {
  Status status = messages.finish();
  if (status.ok()) packed.clear();
  return status;
}

}  // namespace

Status begin_all_gather(Messages& messages, Blocks blocks, Packed& packed) {
  return messages.algorithm() == Algorithm::kRing ? Status() : give_block(messages, blocks, packed);
}

Status end_all_gather(Messages& messages, Blocks blocks, Packed& packed) {
  Status status = messages.algorithm() == Algorithm::kRing
                      ? ring_of_blocks(messages, blocks, packed)
                      : take_blocks(messages, blocks);
  return status.ok() ? leave(messages, packed) : status;
}

Status begin_reduce_scatter(Messages& messages, Blocks blocks, Packed& packed) {
  return messages.algorithm() == Algorithm::kRing ? Status()
                                                  : give_blocks(messages, blocks, packed);
}

Status end_reduce_scatter(Messages& messages, Blocks blocks, Packed& packed,
                          const BlockReduction& how, std::byte* result) {
  Status status = messages.algorithm() == Algorithm::kRing
                      ? ring_of_sums(messages, blocks, packed, how, result)
                      : reduce_block(messages, blocks, how, result);
  return status.ok() ? leave(messages, packed) : status;
}

}  // namespace tw::collective::steps
