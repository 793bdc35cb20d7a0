// SPDX-License-Identifier: Apache-2.0
// Memory of this end that its peer is let at, from expose() until it is concealed, and for as long
// as somebody waits for a word of it, or the peer is amid an access.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "base/ref.h"
#include "engine/word_waits.h"
#include "memory/arena.h"
#include "memory/mapped_memory.h"
#include "wire/one_sided_frames.h"

namespace tw {

class Grant final : public RefCounted {
 public:
  Grant(const wire::Region& what, std::byte* at, Hold keeper, Ref<SharedMemory> common = nullptr,
        Ref<Door> way_in = nullptr, bool by_device = false, Ref<Block> place = nullptr)
      : region(what),
        data(at),
        hold(std::move(keeper)),
        shared(std::move(common)),
        door(std::move(way_in)),
        block(std::move(place)),
        silent_(tally(shared.get(), door.get(), by_device)) {
    if (silent_) silent_->fetch_add(1, std::memory_order_relaxed);
  }
  ~Grant() override {
    if (silent_) silent_->fetch_sub(1, std::memory_order_relaxed);
  }

  bool over() const { return over_.load(std::memory_order_acquire); }
  // The peer is let at it no more. One that has mapped it may still be amid an access: left().
  void end(Door::State why) {
    if (door) door->shut(why);
    over_.store(true, std::memory_order_seq_cst);
    changed();
  }
  bool left() const { return !door || door->empty(); }
  // Wakes who waits for it in any process.
  void changed() const {
    if (shared) tell(shared->words());
  }

  const wire::Region region;
  std::byte* const data;
  const Hold hold;
  const Ref<SharedMemory> shared;  // in which it lies; null: other memory
  const Ref<Door> door;            // null: the peer has not been handed the memory
  // Of the arena, in which it lies, if that was handed over: its next owner waits for the peer.
  const Ref<Block> block;

 private:
  static std::atomic<uint32_t>* tally(SharedMemory* memory, bool mapped, bool by_device) {
    if (!memory) return nullptr;
    if (mapped) return &memory->mappers;
    return by_device ? &memory->devices : nullptr;
  }

  // Of those that change the memory without a frame to this end; null: this peer does not.
  std::atomic<uint32_t>* const silent_;
  std::atomic<bool> over_{false};
};

}  // namespace tw
