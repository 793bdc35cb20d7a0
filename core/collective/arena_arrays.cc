// SPDX-License-Identifier: Apache-2.0
#include "collective/arena_arrays.h"

#include <utility>

#include "base/text.h"
#include "collective/stage.h"

namespace tw::collective {

ArenaArrays::ArenaArrays(Arena& arena, std::span<const std::optional<PeerMemory>> memories)
    : arena_(arena), memories_(memories), mapped_(memories.size()) {}

bool ArenaArrays::reaches(const PeerMemory& memory, const StagePlace& place) {
  const auto slab = memory.map(place.slab);
  if (!slab || place.offset > slab->size() || sizeof(Board) > slab->size() - place.offset ||
      place.offset % alignof(Board) != 0)
    return false;
  const auto& board = *reinterpret_cast<const Board*>(slab->data() + place.offset);
  const auto found = decode_stage_place(board.place);
  return found && found->mark.value == place.mark.value;
}

ArrayPlace ArenaArrays::place_of(const std::byte* array, size_t size) const {
  ArrayPlace place;
  place.address = reinterpret_cast<uintptr_t>(array);
  const Ref<Block> block = array ? arena_.find(array, size) : nullptr;
  if (!block) return place;
  const Slab& slab = block->slab();
  place.offset = static_cast<uint64_t>(array - slab.base());
  place.dropped = arena_.slabs_dropped() & ArrayPlace::kMostDropped;
  place.slab = slab.index();
  place.generation = slab.generation();
  place.slab_size = slab.size();
  place.descriptor = slab.fd();
  return place;
}

Result<const std::byte*> ArenaArrays::find(int rank, const ArrayPlace& place, size_t size) {
  if (place.offset > place.slab_size || size > place.slab_size - place.offset)
    return Status{Code::kInternal, text({"an array of ", size, " bytes at ", place.offset,
                                         " of a slab of ", place.slab_size})};
  Mapped& mapped = mapped_[static_cast<size_t>(rank)];
  if (mapped.dropped != place.dropped) mapped.slabs.clear();
  mapped.dropped = place.dropped;
  MemoryMap& slab = mapped.slabs[{place.slab, place.generation}];
  if (slab.size() != place.slab_size) {
    auto made = memories_[static_cast<size_t>(rank)]->map({place.descriptor, place.slab_size});
    if (!made) return made.status();
    slab = std::move(*made);
  }
  return slab.data() + place.offset;
}

}  // namespace tw::collective
