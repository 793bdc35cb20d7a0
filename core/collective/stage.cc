// SPDX-License-Identifier: Apache-2.0
#include "collective/stage.h"

#include <cstring>
#include <new>
#include <utility>

namespace tw::collective {
namespace {

// What keeps the block while it is lent.
class Lent final : public RefCounted {
 public:
  explicit Lent(Ref<Block> block) : block_(std::move(block)) {}

 private:
  const Ref<Block> block_;
};

}  // namespace

Result<OwnStage> OwnStage::make(Arena& arena, bool readable) {
  auto block = arena.allocate(StageLayout::kBytes);
  if (!block) return block.status();
  // All of its pages come now, and not in the first operations.
  std::memset((*block)->data(), 0, StageLayout::kBytes);
  auto* const board = new ((*block)->data()) Board{};
  StagePlace place;
  place.slab = {(*block)->slab().fd(), (*block)->slab().size()};
  place.offset = (*block)->region().offset;
  std::optional<OwnMark> own;
  if (readable) {
    auto mark = OwnMark::make();
    if (!mark) return mark.status();
    place.mark = mark->mark();
    own = std::move(*mark);
  }
  board->place = encode_stage_place(place);
  return OwnStage(std::move(*block), std::move(own));
}

OutSegment OwnStage::announcement() const {
  OutSegment segment;
  segment.data = block_->data();
  segment.size = StageLayout::kBytes;
  segment.block = block_;
  segment.hold = make_ref<Lent>(block_);
  return segment;
}

Result<PeerStage> PeerStage::map(InMessage announcement, std::string_view host) {
  const auto elsewhere = [] {
    return Status{Code::kUnimplemented, "the rank's memory cannot be mapped by this process"};
  };
  if (announcement.segments.size() != 2) return elsewhere();
  const InSegment &name = announcement.segments[0], &stage = announcement.segments[1];
  const bool here = name.size == host.size() &&
                    (host.empty() || std::memcmp(name.data, host.data(), host.size()) == 0);
  if (!here || stage.size != StageLayout::kBytes || !stage.view()) return elsewhere();
  auto map = stage.view()->map_live();
  if (!map) return map.status();
  return PeerStage(std::move(announcement), std::move(*map));
}

}  // namespace tw::collective
