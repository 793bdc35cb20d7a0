// SPDX-License-Identifier: Apache-2.0
// The arena: this process's shareable memory, cut into blocks that peers may read on a lease.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/declared.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/region.h"
#include "memory/slab.h"

namespace tw {

class Arena;
class ArenaBook;

// What the readers of one publication may have on lease, whatever else they hold: who publishes has
// said how much of the arena that may keep, so it takes nothing of what peers share.
class Quota final : public RefCounted {
 public:
  explicit Quota(size_t limit) : limit_(limit) {}
  size_t limit() const { return limit_; }
  size_t leased() const {
    return static_cast<size_t>(std::max<int64_t>(leased_.load(std::memory_order_relaxed), 0));
  }
  // How many blocks were copied for a reader, so far, because it was used up.
  uint64_t copied() const { return copied_.load(std::memory_order_relaxed); }

 private:
  friend class Arena;
  friend class Block;
  const size_t limit_;
  std::atomic<uint64_t> copied_{0};
  std::atomic<int64_t> leased_{0};
};

// A run of arena memory with one owner at a time. The last reference gives it back to its arena,
// which a block keeps alive; in a forked child it gives back nothing.
class Block final : public Listed<> {
 public:
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }          // bytes asked for
  size_t capacity() const { return capacity_; }  // bytes it takes up

  // None of it has been part of a block before.
  bool fresh() const { return fresh_; }

  Slab& slab() const { return *slab_; }
  // The name of the whole block, or of a part that the caller knows to lie inside it.
  RegionRef region() const { return region(data_, size_); }
  RegionRef region(const void* from, size_t length) const {
    const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(from) - slab_->base());
    return {slab_->index(), slab_->generation(), offset, length};
  }
  // Whether a reader may keep it on a lease: it shares no page with another block, so the reader
  // can drop its private pages without hitting a neighbour. Smaller blocks travel by copy.
  bool leasable() const { return capacity_ % page_size() == 0; }

  // Null: its leases are of the share that a peer has of the arena.
  const Quota* quota() const { return quota_.get(); }

  // Whether some peer has it on lease: then another one takes no more of the arena.
  bool on_lease() const { return leases_.load(std::memory_order_relaxed) != 0; }
  // Whether a peer that holds `held` bytes of the arena on lease may have this block, too: see
  // Arena::spares(). `fresh`: bytes among `held` that are on lease to nobody yet, but about to be.
  // With a quota that alone decides, and `fresh` are bytes of blocks with one.
  bool lendable(size_t held, size_t fresh = 0) const;
  // Why not, of a block that is copied therefore: its quota counts it.
  Status crowded(size_t held, size_t fresh = 0) const;
  // A peer was told of the block, and has given it back or died.
  void lent();
  void returned();

  // The owner's promise to write no more; stays until the block is freed.
  void publish() { published_.store(true, std::memory_order_release); }
  bool published() const { return published_.load(std::memory_order_acquire); }

 private:
  friend class Arena;
  Block(Ref<Arena> arena, Ref<Quota> quota, Slab& slab, std::byte* data, size_t size,
        size_t capacity, bool fresh);
  void dispose() noexcept override;

  const Ref<Arena> arena_;
  const Ref<Quota> quota_;
  Slab* const slab_;  // the arena keeps it while it has blocks
  std::byte* const data_;
  const size_t size_;
  const size_t capacity_;
  const bool fresh_;
  std::atomic<bool> published_{false};
  std::atomic<uint32_t> leases_{0};
};

struct ArenaStats {
  size_t capacity = 0, reserved = 0;
  size_t resident = 0;  // handed out at least once since their slab was made
  size_t used = 0;      // rounding included
  size_t leased = 0, wanted = 0, high_water = 0;
  size_t slabs = 0, blocks = 0;
};
inline constexpr Counter<ArenaStats> kArenaStats[] = {
    {&ArenaStats::capacity,
     {"capacity",
      {"arena_capacity_bytes", "bytes", Metric::Kind::kGauge,
       "Most memory that the arena may hold."}}},
    {&ArenaStats::reserved,
     {"reserved",
      {"arena_reserved_bytes", "bytes", Metric::Kind::kGauge, "Address space of the arena."}}},
    {&ArenaStats::resident,
     {"resident",
      {"arena_resident_bytes", "bytes", Metric::Kind::kGauge, "Memory that the arena holds."}}},
    {&ArenaStats::used,
     {"used",
      {"arena_used_bytes", "bytes", Metric::Kind::kGauge, "Memory in blocks that are alive."}}},
    {&ArenaStats::leased,
     {"leased",
      {"arena_leased_bytes", "bytes", Metric::Kind::kGauge,
       "Memory that other processes may be reading."}}},
    {&ArenaStats::wanted,
     {"wanted",
      {"arena_wanted_bytes", "bytes", Metric::Kind::kGauge,
       "The least capacity, as a power of two, that would have spared the copies made so far for "
       "want of room; 0: none were made."}}},
    {&ArenaStats::high_water,
     {"high_water",
      {"arena_high_water_bytes", "bytes", Metric::Kind::kGauge,
       "The most that the arena has held."}}},
    {&ArenaStats::slabs,
     {"slabs",
      {"arena_slabs", "slabs", Metric::Kind::kGauge, "Pieces of shared memory in the arena."}}},
    {&ArenaStats::blocks,
     {"blocks", {"arena_blocks", "blocks", Metric::Kind::kGauge, "Blocks that are alive."}}},
};
static_assert(complete(kArenaStats));

// Thread-safe. One for each process and trust domain.
class Arena final : public RefCounted {
 public:
  // `capacity`: cap on resident bytes. `slab_size`: bytes of a standard slab; a block larger than a
  // quarter of it gets a slab to itself.
  explicit Arena(size_t capacity, size_t slab_size = size_t{256} << 20);

  // Memory for `size` bytes with undefined contents: aligned to 4096 and sharing no page with other
  // blocks from 4096 bytes up, aligned to 64 below. Waits until `deadline` (0: not at all) for
  // blocks to be freed. RESOURCE_EXHAUSTED names TENSORWIRE_BUFFER_BYTES (and comes at once when
  // `size` can never fit); CANCELLED after interrupt(); FAILED_PRECONDITION in a forked child.
  // `quota`: what its leases count in.
  Result<Ref<Block>> allocate(size_t size, Nanos deadline = 0, Ref<Quota> quota = {});
  // As allocate(), without a wait, for an allocator whose user does not know what will be sent:
  // what takes more than an eighth of the arena leaves an eighth free, so that a few large blocks
  // that never leave the process do not keep smaller ones out that do.
  Result<Ref<Block>> allocate_with_room(size_t size);
  // Ends every wait that is going on in allocate().
  void interrupt();

  // The live block that holds all of [p, p + size), or null. Safe while other threads free.
  Ref<Block> find(const void* p, size_t size);

  // Whether a peer that holds `held` bytes on lease may have `size` more that nobody has yet. It
  // may hold as much as the leases of all peers leave free, so a single one gets half of the arena,
  // and many get like shares. An eighth stays free for what is born there, unless hardly anything
  // is on lease: then one block may be as large as it likes.
  bool spares(size_t size, size_t held) const { return spares(size, held, leased()); }
  // Why not, in a sentence that names the setting, its value, and one that would have been enough.
  // `held`, `fresh`: as in Block::lendable(), what was refused before of the same message included.
  Status crowded(size_t size, size_t held, size_t fresh = 0) const;
  // For what needs room to be sent: as allocate(), and a refusal counts as want of room.
  Result<Ref<Block>> allocate_to_send(size_t size);
  // The cap that was found wanting, if it is more than the last answer: for those who tell it.
  // A power of two, so that it grows a few times in a process's life at most.
  size_t take_wanted();

  // Gives back slabs that have been wholly free since before `idle_before`.
  void trim(Nanos idle_before = kForever);
  // How many slabs have been dropped so far. A link that sees it change asks each slab that it has
  // handed over whether it is dropped(), tells its peer, and lets go of it.
  uint64_t slabs_dropped() const { return slabs_dropped_.load(std::memory_order_acquire); }

  ArenaStats stats() const;

 private:
  friend class Block;
  ~Arena() override;
  // A peer was told of the block, and has given it back (or died).
  void lease_began(Block& block);
  void lease_ended(Block& block);
  // Without a quota.
  size_t leased() const {
    return static_cast<size_t>(std::max<int64_t>(leased_.load(std::memory_order_relaxed), 0));
  }
  size_t all_leased() const {
    const int64_t within = leased_within_quotas_.load(std::memory_order_relaxed);
    return leased() + static_cast<size_t>(std::max<int64_t>(within, 0));
  }
  void count_lease(Block& block, int64_t bytes);
  bool spares(size_t size, size_t held, size_t leased) const {
    return held < capacity_ - std::min(leased, capacity_) &&
           (leased + size <= capacity_ - capacity_ / 8 || leased <= capacity_ / 8);
  }
  Result<Ref<Block>> allocate(size_t size, Nanos deadline, size_t room, Ref<Quota> quota);
  void free(Block& block) noexcept;
  Status exhausted(size_t size) const TW_REQUIRES(mutex_);
  // A cap from `least` up that is above the present one.
  size_t want(size_t least) const;
  std::vector<Ref<Slab>> take_dropped() noexcept
      TW_REQUIRES(mutex_);  // to be let go of without the lock

  const Birthplace home_;
  const size_t capacity_;
  mutable Mutex mutex_;
  Condition space_;
  std::unique_ptr<ArenaBook> book_ TW_GUARDED_BY(mutex_);
  size_t blocks_ TW_GUARDED_BY(mutex_) = 0;
  size_t waiters_ TW_GUARDED_BY(mutex_) = 0;
  uint64_t interruptions_ TW_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> leased_{0}, leased_within_quotas_{0};
  mutable std::atomic<size_t> wanted_{0};
  std::atomic<size_t> told_{0};
  std::atomic<uint64_t> slabs_dropped_{0};
};

}  // namespace tw
