// SPDX-License-Identifier: Apache-2.0
// Memory of another process, mapped here, and the door by which its owner ends that: shared memory,
// or a run of the owner's arena, which can only be read.
//
// A peer counts itself in before each access, looks whether the door is open, and counts itself out
// afterwards. The owner shuts the door and waits until nobody is inside. Each grant has a door of
// its own, so that a peer that dies inside, or lies, keeps no other grant from ending.
//
// The end of a link shuts its doors and waits for nobody, and memory of an arena becomes another
// owner's then. So who has read looks at the door once more, before anybody believes what was read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/fd.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/mapping.h"
#include "memory/memfd.h"
#include "memory/shared_memory.h"

namespace tw {

// What is in a door's file, which both ends write.
struct DoorWords {
  std::atomic<uint32_t> state{0};
  std::atomic<uint32_t> inside{0};
};

class Door final : public RefCounted {
 public:
  enum State : uint32_t { kOpen, kConcealed, kLinkOver };

  // The file by which a peer has it, made now: until then it costs no descriptor and no page. Once,
  // and never while another thread shuts it. RESOURCE_EXHAUSTED.
  Result<Fd> build();
  // Nobody enters any more. Who is inside sees it before it sees what is stored afterwards.
  void shut(State why) {
    DoorWords& words = this->words();
    uint32_t open = kOpen;
    if (why == kLinkOver)
      words.state.store(why, std::memory_order_seq_cst);
    else
      words.state.compare_exchange_strong(open, why, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  bool empty() const { return words().inside.load(std::memory_order_seq_cst) == 0; }

 private:
  DoorWords& words() const { return *words_.load(std::memory_order_acquire); }

  MemoryMap map_;
  DoorWords inner_;  // before it is built
  std::atomic<DoorWords*> words_{&inner_};
};

class MappedMemory final : public RefCounted {
 public:
  // Takes the two files that the peer has handed over. INVALID_ARGUMENT: they are not what they
  // must be. RESOURCE_EXHAUSTED.
  static Result<Ref<MappedMemory>> map(Fd file, Fd door, uint64_t file_size,
                                       Ref<MappingTally> tally);
  // Takes `length` bytes at `offset` of a peer's slab. INVALID_ARGUMENT: they are not within it.
  // RESOURCE_EXHAUSTED.
  static Result<Ref<MappedMemory>> map(const SlabMapping& slab, uint64_t offset, uint64_t length,
                                       MemoryMap door, Ref<MappingTally> tally);
  // A door that the peer has handed over. INVALID_ARGUMENT: it is none. RESOURCE_EXHAUSTED.
  static Result<MemoryMap> map_door(Fd door);
  ~MappedMemory() override;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // of what is the user's
  bool writable() const { return writable_; }
  // Writable memory only.
  SharedWords& words() const {
    return *reinterpret_cast<SharedWords*>(map_.data() + map_.size() - page_size());
  }

  // One that is open lets its owner touch the memory for as long as it lives.
  class Visit {
   public:
    Visit() = default;
    explicit Visit(Ref<MappedMemory> memory) : memory_(std::move(memory)) {
      memory_->door().inside.fetch_add(1, std::memory_order_seq_cst);
    }
    Visit(Visit&& other) noexcept : memory_(std::move(other.memory_)) {}
    Visit& operator=(Visit&& other) noexcept {
      std::swap(memory_, other.memory_);
      return *this;
    }
    ~Visit() {
      if (memory_) memory_->leave();
    }
    Door::State state() const {
      return static_cast<Door::State>(memory_->door().state.load(std::memory_order_seq_cst));
    }
    // Of the time when all that was read so far had been read.
    Door::State state_since() const {
      std::atomic_thread_fence(std::memory_order_acquire);
      return state();
    }
    MappedMemory* operator->() const { return memory_.get(); }

   private:
    Ref<MappedMemory> memory_;
  };

 private:
  MappedMemory(MemoryMap map, std::byte* data, size_t size, MemoryMap door, bool writable,
               Ref<MappingTally> tally);
  DoorWords& door() const { return *reinterpret_cast<DoorWords*>(door_.data()); }
  void leave() noexcept { door().inside.fetch_sub(1, std::memory_order_seq_cst); }

  const MemoryMap map_;
  std::byte* const data_;
  const size_t size_;
  const MemoryMap door_;
  const bool writable_;
  const Ref<MappingTally> tally_;
};

}  // namespace tw
