// SPDX-License-Identifier: Apache-2.0
#include "link/staging.h"

#include <utility>

namespace tw {

void stage(Link& link, std::span<OutSegment> segments) {
  if (link.profile().bulk == Bulk::kPush) return;
  Runtime& runtime = link.runtime();
  size_t held = link.share_bytes(), refused = 0;
  for (OutSegment& segment : segments) {
    if (segment.block || !link.bulk(segment.size)) continue;
    if (Ref<Block> block = runtime.arena().find(segment.data, segment.size);
        block && (segment.hold || block->published())) {
      segment.block = std::move(block);
      continue;
    }
    if (!runtime.arena().spares(segment.size, held)) {
      link.count_crowded(runtime.arena().crowded(segment.size, held + refused, refused));
      refused += segment.size;
      continue;
    }
    auto block = runtime.arena().allocate_to_send(segment.size);
    if (!block) {
      link.count_crowded(block.status());
      continue;
    }
    runtime.copier().copy((*block)->data(), segment.data, segment.size);
    link.count_copy(segment.size);
    runtime.memory_used();
    held += segment.size;
    segment.data = (*block)->data();
    segment.block = std::move(*block);
    segment.hold = nullptr;
  }
}

}  // namespace tw
