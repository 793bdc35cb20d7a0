// SPDX-License-Identifier: Apache-2.0
#include "collective/staged_pieces.h"

#include <algorithm>

namespace tw::collective {
namespace {

constexpr size_t kAligned = 64;  // a multiple of each type's size

// What of each run is in a piece: in the array, and in a slot.
struct Cut {
  StagedPieces::Runs there, here;
  size_t bytes = 0;
};
Cut cut(const StagedPieces::Runs& runs, uint64_t piece, size_t bytes) {
  Cut made;
  for (const Fabric::Run& run : runs) {
    const size_t begin = std::min<uint64_t>(run.size, piece * bytes);
    const size_t size = std::min(run.size - begin, bytes);
    made.there.push_back({run.offset + begin, size});
    made.here.push_back({made.bytes, size});
    made.bytes += size;
  }
  return made;
}

}  // namespace

size_t StagedPieces::piece_bytes(size_t runs) {
  return std::max(kAligned, kSlotBytes / std::max<size_t>(runs, 1) / kAligned * kAligned);
}

Status StagedPieces::make_slot(size_t slot, size_t bytes) {
  std::optional<PinnedSlot>& made = slots_[slot];
  if (made && made->capacity >= bytes) return {};
  made.reset();
  bytes = std::max(bytes, kSlotBytes);
  auto queue = DeviceQueue::make(driver_, device_);
  if (!queue) return queue.status();
  auto memory = driver_.allocate_pinned(device_, bytes);
  if (!memory) return memory.status();
  made.emplace(PinnedSlot{std::move(*queue), {driver_, device_, *memory}, bytes});
  return {};
}

Status StagedPieces::run(const Given& in, const Taken& out, uint64_t pieces, size_t bytes,
                         bool in_place, const Step& step, const Wait& wait) try {
  Status status = this->pieces(in, out, pieces, bytes, in_place, step, wait);
  if (!status.ok()) settle();
  return status;
} catch (...) {
  settle();  // without memory, too, copies are on their way
  throw;
}

void StagedPieces::settle() {
  for (std::optional<PinnedSlot>& slot : slots_) {
    if (slot && !slot->queue.settle()) slot->memory.abandon();
    slot.reset();
  }
}

Status StagedPieces::pieces(const Given& in, const Taken& out, uint64_t pieces, size_t bytes,
                            bool in_place, const Step& step, const Wait& wait) {
  const size_t in_room = in.runs.size() * bytes, out_room = out.runs.size() * bytes;
  const size_t out_at = in_place ? 0 : in_room;
  const auto copy_in = [&](uint64_t piece) -> Status {
    if (Status made = make_slot(piece % kSlots, in_room + out_room); !made.ok()) return made;
    auto& [queue, memory, capacity] = *slots_[piece % kSlots];
    const Cut of = cut(in.runs, piece, bytes);
    for (size_t i = 0; i < of.here.size(); ++i)
      if (Status status = queue.copy(memory.get() + of.here[i].offset, in.data + of.there[i].offset,
                                     of.here[i].size);
          !status.ok())
        return status;
    return queue.mark();
  };
  for (uint64_t piece = 0; piece < std::min<uint64_t>(pieces, kSlots); ++piece)
    if (Status status = copy_in(piece); !status.ok()) return status;
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    auto& [queue, memory, capacity] = *slots_[piece % kSlots];
    if (Status status = queue.await(members_, wait); !status.ok()) return status;
    const Cut from = cut(in.runs, piece, bytes), to = cut(out.runs, piece, bytes);
    std::byte* const result = memory.get() + out_at;
    if (Status status = step(piece, {memory.get(), from.here, result, to.here}); !status.ok())
      return status;
    for (size_t i = 0; i < to.here.size(); ++i)
      if (Status status = queue.upload(out.data + to.there[i].offset, result + to.here[i].offset,
                                       to.here[i].size);
          !status.ok())
        return status;
    // The slot's stream keeps the next piece behind this one.
    Status status = piece + kSlots < pieces ? copy_in(piece + kSlots) : queue.mark();
    if (!status.ok()) return status;
  }
  for (uint64_t slot = 0; slot < std::min<uint64_t>(pieces, kSlots); ++slot)
    if (Status status = slots_[slot]->queue.await(members_, wait); !status.ok()) return status;
  return {};
}

}  // namespace tw::collective
