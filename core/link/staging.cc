// SPDX-License-Identifier: Apache-2.0
#include "link/staging.h"

#include <utility>
#include <vector>

namespace tw {
namespace {

struct Staged {
  OutSegment* segment;
  Ref<Block> block;
};

// As one copy, however small each of them is.
void copy_all(Link& link, std::span<Staged> all) {
  std::vector<Copier::Copy> copies;
  copies.reserve(all.size());
  for (const Staged& each : all)
    copies.push_back(
        {each.block->data(), each.segment->data, each.segment->size,
         each.block->fresh() ? Copier::Destination::kFreshShared : Copier::Destination::kUsed});
  link.runtime().copier().copy(copies);
  for (Staged& each : all) {
    OutSegment& segment = *each.segment;
    link.count_copy(segment.size);
    segment.data = each.block->data();
    segment.block = std::move(each.block);
    segment.hold = nullptr;
  }
  link.runtime().memory_used();
}

}  // namespace

void stage(Link& link, std::span<OutSegment> segments) {
  decide(segments, link.eager_bytes(), link.profile().coalesce_bytes);
  if (link.profile().bulk == Bulk::kPush) return;
  Runtime& runtime = link.runtime();
  size_t held = link.share_bytes(), refused = 0;
  std::vector<Staged> staged;
  for (OutSegment& segment : segments) {
    if (segment.block || segment.view || !*segment.bulk) continue;
    if (Ref<LeasedView> view = link.held({segment.data, segment.size})) {
      segment.hold = view;
      segment.view = std::move(view);
      continue;
    }
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
    held += segment.size;
    staged.push_back({&segment, std::move(*block)});
  }
  if (!staged.empty()) copy_all(link, staged);
}

}  // namespace tw
