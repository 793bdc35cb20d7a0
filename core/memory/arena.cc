// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "memory/arena_book.h"

namespace tw {
namespace {

std::string bytes(size_t n) { return std::to_string(n) + " bytes"; }

}  // namespace

Block::Block(Ref<Arena> arena, Ref<Quota> quota, Slab& slab, std::byte* data, size_t size,
             size_t capacity, bool fresh)
    : arena_(std::move(arena)),
      quota_(std::move(quota)),
      slab_(&slab),
      data_(data),
      size_(size),
      capacity_(capacity),
      fresh_(fresh) {}

void Block::dispose() noexcept {
  if (!arena_->home_.here()) return;  // the memory is the parent's
  arena_->free(*this);
  delete this;
}

Arena::Arena(size_t capacity, size_t slab_size)
    : capacity_(capacity), book_(std::make_unique<ArenaBook>(capacity, slab_size)) {}

Arena::~Arena() = default;

Result<Ref<Block>> Arena::allocate(size_t size, Nanos deadline, Ref<Quota> quota) {
  return allocate(size, deadline, 0, std::move(quota));
}

Result<Ref<Block>> Arena::allocate_with_room(size_t size) {
  const size_t eighth = capacity_ / 8;
  return allocate(size, 0, size > eighth ? eighth : 0, {});
}

// `room`: what is free afterwards at least, or the block is refused.
Result<Ref<Block>> Arena::allocate(size_t size, Nanos deadline, size_t room, Ref<Quota> quota) {
  if (!home_.here()) {
    return Status(Code::kFailedPrecondition,
                  "this arena belongs to the process that forked this one; make a new one here");
  }
  std::optional<uint64_t> interruptions;  // when it began
  for (;;) {
    // Unmapped without the lock, and before anybody waits.
    std::vector<Ref<Slab>> dropped;
    const MutexLock lock(mutex_);
    if (size > capacity_) return exhausted(size);
    if (room != 0 && book_->used() + size + room > capacity_) return exhausted(size);
    if (!interruptions) interruptions = interruptions_;
    if (*interruptions != interruptions_)
      return Status(Code::kCancelled, "the wait for arena memory was interrupted");
    auto extent = book_->take(size);
    dropped = take_dropped();
    if (!extent) return extent.status();
    if (extent->slab) {
      auto* const block = new (std::nothrow)
          Block(Ref<Arena>::share(this), quota, *extent->slab,
                extent->slab->base() + extent->offset, size, extent->length, extent->fresh);
      if (!block) {
        book_->give(*extent->slab, extent->offset);
        return exhausted(size);
      }
      *extent->owner = block;
      ++blocks_;
      return Ref<Block>::adopt(block);
    }
    if (!dropped.empty()) continue;
    if (deadline <= 0 || deadline <= now()) return exhausted(size);
    ++waiters_;
    if (deadline == kForever) {
      space_.wait(mutex_);
    } else {
      using Clock = std::chrono::steady_clock;
      space_.wait_until(mutex_, Clock::time_point(std::chrono::nanoseconds(deadline)));
    }
    --waiters_;
  }
}

std::vector<Ref<Slab>> Arena::take_dropped() noexcept {
  auto dropped = book_->take_dropped();
  slabs_dropped_.fetch_add(dropped.size(), std::memory_order_release);
  return dropped;
}

Status Arena::exhausted(size_t size) const {
  const std::string limit = "TENSORWIRE_BUFFER_BYTES (" + bytes(capacity_) + ")";
  if (size > capacity_) {
    return {Code::kResourceExhausted,
            bytes(size) + " can never fit into the arena: raise " + limit};
  }
  return {Code::kResourceExhausted,
          "the arena is full: no room for " + bytes(size) + " within " + limit + ", of which " +
              bytes(book_->used()) + " are in use, " + bytes(all_leased()) +
              " of these leased to peers; release buffers sooner or raise the limit"};
}

Status Arena::crowded(size_t size, size_t held, size_t fresh) const {
  const size_t on_lease = leased() + fresh + size;
  const size_t enough = want(std::max(on_lease + held + size, on_lease / 7 * 8));
  return {Code::kResourceExhausted,
          text({"copied for want of a lease: ", size, " bytes, with which the peer would hold ",
                held + size, " bytes of the arena; all peers hold ", leased(),
                ", and one may hold as much as all leave free: TENSORWIRE_BUFFER_BYTES is ",
                size_text(capacity_), ", and ", size_text(enough),
                " would have been enough; or let go of received tensors sooner"})};
}

Result<Ref<Block>> Arena::allocate_to_send(size_t size) {
  auto block = allocate(size);
  if (!block && block.status().code() == Code::kResourceExhausted) {
    const size_t used = stats().used;
    return Status(Code::kResourceExhausted,
                  text({"copied for want of room: ", size, " bytes; ", used,
                        " bytes of the arena are in use, ", all_leased(),
                        " of these on lease to peers: TENSORWIRE_BUFFER_BYTES is ",
                        size_text(capacity_), ", and ", size_text(want(used + 2 * size)),
                        " would have been enough; or release buffers sooner"}));
  }
  return block;
}

size_t Arena::want(size_t least) const {
  const size_t enough = std::bit_ceil(std::max(least, capacity_ + 1));
  size_t before = wanted_.load(std::memory_order_relaxed);
  while (before < enough &&
         !wanted_.compare_exchange_weak(before, enough, std::memory_order_relaxed)) {
  }
  return enough;
}

size_t Arena::take_wanted() {
  const size_t wanted = wanted_.load(std::memory_order_relaxed);
  size_t told = told_.load(std::memory_order_relaxed);
  while (told < wanted) {
    if (told_.compare_exchange_weak(told, wanted, std::memory_order_relaxed)) return wanted;
  }
  return 0;
}

void Arena::interrupt() {
  if (!home_.here()) return;
  const MutexLock lock(mutex_);
  ++interruptions_;
  space_.notify_all();
}

void Arena::free(Block& block) noexcept {
  std::vector<Ref<Slab>> dropped;
  const MutexLock lock(mutex_);
  book_->give(*block.slab_, static_cast<size_t>(block.data_ - block.slab_->base()));
  --blocks_;
  dropped = take_dropped();
  if (waiters_ != 0) space_.notify_all();
}

Ref<Block> Arena::find(const void* p, size_t size) {
  if (!home_.here()) return nullptr;
  const MutexLock lock(mutex_);
  Block* const block = book_->find(p);
  if (!block) return nullptr;
  const auto skipped = static_cast<size_t>(static_cast<const std::byte*>(p) - block->data_);
  if (skipped > block->size_ || size > block->size_ - skipped) return nullptr;
  // Its last reference may be on its way into free(), which waits for the lock.
  return block->try_retain() ? Ref<Block>::adopt(block) : nullptr;
}

bool Block::lendable(size_t held, size_t fresh) const {
  if (quota_) return on_lease() || quota_->leased() + fresh + capacity_ <= quota_->limit();
  return arena_->spares(on_lease() ? 0 : capacity_, held, arena_->leased() + fresh);
}

Status Block::crowded(size_t held, size_t fresh) const {
  if (quota_) {
    quota_->copied_.fetch_add(1, std::memory_order_relaxed);
    return {Code::kResourceExhausted,
            text({"copied for want of a lease: ", capacity_, " bytes of a publication of which ",
                  quota_->leased() + fresh, " are on lease, and ", quota_->limit(),
                  " may be: let go of versions sooner, or publish with a larger quota"})};
  }
  return arena_->crowded(capacity_, held, fresh);
}

void Block::lent() { arena_->lease_began(*this); }
void Block::returned() { arena_->lease_ended(*this); }

void Arena::lease_began(Block& block) {
  if (block.leases_.fetch_add(1, std::memory_order_relaxed) == 0)
    count_lease(block, static_cast<int64_t>(block.capacity_));
}

void Arena::lease_ended(Block& block) {
  if (block.leases_.fetch_sub(1, std::memory_order_relaxed) == 1)
    count_lease(block, -static_cast<int64_t>(block.capacity_));
}

void Arena::count_lease(Block& block, int64_t bytes) {
  (block.quota_ ? leased_within_quotas_ : leased_).fetch_add(bytes, std::memory_order_relaxed);
  if (block.quota_) block.quota_->leased_.fetch_add(bytes, std::memory_order_relaxed);
}

void Arena::trim(Nanos idle_before) {
  if (!home_.here()) return;
  std::vector<Ref<Slab>> dropped;
  const MutexLock lock(mutex_);
  book_->trim(idle_before);
  dropped = take_dropped();
}

ArenaStats Arena::stats() const {
  ArenaStats stats;
  stats.capacity = capacity_;
  if (!home_.here()) return stats;
  const MutexLock lock(mutex_);
  stats.reserved = book_->reserved();
  stats.resident = book_->resident();
  stats.used = book_->used();
  stats.leased = all_leased();
  stats.wanted = wanted_.load(std::memory_order_relaxed);
  stats.high_water = book_->high_water();
  stats.slabs = book_->slabs();
  stats.blocks = blocks_;
  return stats;
}

}  // namespace tw
