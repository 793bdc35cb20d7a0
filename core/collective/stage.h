// SPDX-License-Identifier: Apache-2.0
// A stage: memory of one rank that the other ranks of its host read while it writes. It has a board
// with what the rank has come to, and room for data. Nobody writes another rank's stage, so that a
// rank can spoil its own only.
//
// What is more than a counter is decoded (core/collective/wire.h).
//
// Waiting is a futex on a word of the rank that is waited for. Who waits says so on its own board,
// so that publishing costs no system call unless somebody sleeps.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "collective/peer_memory.h"
#include "collective/wire.h"
#include "memory/arena.h"
#include "memory/mapping.h"
#include "message/message.h"

namespace tw::collective {

// Ranks read each other's memory: the same processors and the same build of these structures.
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// One operation that a rank has begun. Its data fits beside it when it is tiny, so that a wait for
// it and the data take one cache line.
struct alignas(64) BoardEntry {
  static constexpr size_t kRoom = 40;
  std::atomic<uint64_t> sequence;  // written last
  CallBytes call;
  std::byte data[kRoom];
};
static_assert(sizeof(BoardEntry) == 64);

struct Board {
  // An entry is written anew after so many operations.
  static constexpr uint64_t kEntries = 16;

  alignas(64) std::atomic<uint32_t> wakes;  // the futex word: grows when somebody is woken
  // The rank whose word this one sleeps on, plus 1; 0: it is awake.
  alignas(64) std::atomic<int32_t> waits_for;
  std::atomic<int32_t> cpu;  // where it ran when it last began to wait
  // How many chunks this rank has put on its stage, has reduced its part of, and needs no more of
  // the others: since the group was made.
  alignas(64) std::atomic<uint64_t> staged;
  alignas(64) std::atomic<uint64_t> reduced;
  alignas(64) std::atomic<uint64_t> taken;
  // The last operation in which this rank is done with reading the others' arrays.
  alignas(64) std::atomic<uint64_t> read;
  // Its arrays are its user's again, in the middle of an operation that failed.
  std::atomic<bool> failed;
  // Of this board; written before the stage is announced.
  alignas(64) std::array<std::byte, kStagePlaceSize> place;
  BoardEntry entries[kEntries];
};

// Where the data of a rank lies in its stage.
struct StageLayout {
  static constexpr size_t kSlot = 64 << 10;    // an operation that needs one step; two of them
  static constexpr size_t kChunk = 256 << 10;  // a step of one that takes several
  static constexpr size_t kDepth = 4;          // chunks that are there at a time
  static constexpr size_t kBoard = 4096;
  static_assert(sizeof(Board) <= kBoard);
  static constexpr size_t kBytes = kBoard + 2 * kSlot + kDepth * kChunk;

  static constexpr size_t slot(uint64_t sequence) { return kBoard + (sequence & 1) * kSlot; }
  static constexpr size_t chunk(uint64_t number) {
    return kBoard + 2 * kSlot + number % kDepth * kChunk;
  }
};

// This rank's own.
class OwnStage {
 public:
  // RESOURCE_EXHAUSTED: the arena has no room. `readable`: whether ranks of this host may read this
  // process's memory.
  static Result<OwnStage> make(Arena& arena, bool readable);

  Board& board() const { return *reinterpret_cast<Board*>(block_->data()); }
  std::byte* slot(uint64_t sequence) const { return block_->data() + StageLayout::slot(sequence); }
  std::byte* chunk(uint64_t number) const { return block_->data() + StageLayout::chunk(number); }
  // To be sent to ranks of this host. They read it for as long as they like.
  OutSegment announcement() const;

 private:
  OwnStage(Ref<Block> block, std::optional<OwnMark> mark)
      : block_(std::move(block)), mark_(std::move(mark)) {}
  Ref<Block> block_;
  std::optional<OwnMark> mark_;
};

// Another rank's, mapped here.
class PeerStage {
 public:
  // What a rank has announced, behind the name of its host. UNIMPLEMENTED: it does not lie in
  // memory that this process can map, or the host has another name than this process's: the rank
  // runs elsewhere. RESOURCE_EXHAUSTED.
  static Result<PeerStage> map(InMessage announcement, std::string_view host);

  const Board& board() const { return *reinterpret_cast<const Board*>(map_.data()); }
  const std::byte* slot(uint64_t sequence) const {
    return map_.data() + StageLayout::slot(sequence);
  }
  const std::byte* chunk(uint64_t number) const { return map_.data() + StageLayout::chunk(number); }

 private:
  PeerStage(InMessage lease, MemoryMap map) : lease_(std::move(lease)), map_(std::move(map)) {}
  InMessage lease_;  // keeps the owner from using the memory for something else
  MemoryMap map_;
};

}  // namespace tw::collective
