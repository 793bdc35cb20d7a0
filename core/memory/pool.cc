// SPDX-License-Identifier: Apache-2.0
#include "memory/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/shortage.h"
#include "memory/huge_pages.h"

namespace tw {
namespace {

constexpr std::align_val_t kSmallAlignment{64};

// Of fresh memory that is mapped at once; what has not been used takes address space alone.
constexpr size_t kFreshBytes = 32 << 20;

Status too_large(size_t size) {
  return {Code::kResourceExhausted, "no receive buffer has " + std::to_string(size) + " bytes"};
}

}  // namespace

PoolBuffer::PoolBuffer(Ref<Pool> pool, MemoryMap memory, size_t size)
    : pool_(std::move(pool)),
      memory_(std::move(memory)),
      data_(memory_.data()),
      size_(size),
      capacity_(memory_.size()) {}

PoolBuffer::PoolBuffer(size_t small)
    : data_(static_cast<std::byte*>(::operator new(small, kSmallAlignment))),
      size_(small),
      capacity_(small) {}

PoolBuffer::~PoolBuffer() {
  if (!pool_) ::operator delete(data_, kSmallAlignment);
}

void PoolBuffer::dispose() noexcept {
  if (pool_) {
    // A forked child may have inherited the pool's lock locked: its copy of the buffer stays.
    if (!pool_->home_.here()) return;
    pool_->put(std::move(memory_));
  }
  delete this;
}

Result<Ref<PoolBuffer>> Pool::get(size_t size) {
  if (size < kSmallest) return Ref<PoolBuffer>::adopt(new PoolBuffer(size));
  if (size > kLargest) return too_large(size);
  if (!home_.here()) {
    return Status(Code::kFailedPrecondition,
                  "this pool belongs to the process that forked this one; make a new one here");
  }
  const size_t index = class_of(size);
  const size_t capacity = class_size(index);
  MemoryMap memory = take_idle(index);
  if (!memory.data()) {
    auto map = make(capacity);
    if (!map) return map.status();
    memory = std::move(*map);
    const MutexLock lock(mutex_);
    stats_.used += capacity;
    ++stats_.fresh;
  }
  return Ref<PoolBuffer>::adopt(new PoolBuffer(Ref<Pool>::share(this), std::move(memory), size));
}

Ref<PoolBuffer> Pool::recycled(size_t size) {
  if (size < kSmallest || size > kLargest || !home_.here()) return nullptr;
  MemoryMap memory = take_idle(class_of(size));
  if (!memory.data()) return nullptr;
  return Ref<PoolBuffer>::adopt(new PoolBuffer(Ref<Pool>::share(this), std::move(memory), size));
}

// The newest of a size; empty when none is idle.
MemoryMap Pool::take_idle(size_t index) {
  const MutexLock lock(mutex_);
  auto& candidates = free_[index];
  if (candidates.empty()) return {};
  const auto newest = candidates.back();
  candidates.pop_back();
  MemoryMap memory = std::move(newest->memory);
  idle_.erase(newest);
  stats_.used += memory.size();
  stats_.idle -= memory.size();
  ++stats_.recycled;
  return memory;
}

// Memory that nobody has used. In small pages its first use costs up to ten times as much.
Result<MemoryMap> Pool::make(size_t capacity) {
  if (capacity < kSmallestHuge)
    return MemoryMap::map(-1, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  if (capacity >= kHugePage) {
    auto map = map_huge_pages(capacity);
    if (map) settle_pages(*map, 0);
    return map;
  }
  MemoryMap rest;  // unmapped without the lock
  const MutexLock lock(mutex_);
  if (fresh_.size() < capacity) {
    auto map = map_huge_pages(kFreshBytes);
    if (!map) return map;
    settle_pages(*map, 0);
    rest = std::exchange(fresh_, std::move(*map));
  }
  return fresh_.cut(capacity);
}

Status PoolBuffer::extend(size_t size) {
  const size_t before = capacity_;
  if (size > before) {
    if (size > Pool::kLargest) return too_large(size);
    const size_t capacity = Pool::class_size(Pool::class_of(size));
    Status status{Code::kResourceExhausted, {}};
    // A huge page moves whole if both of its places begin with one.
    if (capacity >= kHugePage)
      if (auto room = map_huge_pages(capacity)) status = memory_.move_to(std::move(*room));
    // Where there is no address space for both of them, too.
    if (!status.ok()) status = memory_.grow(capacity);
    if (!status.ok()) return status;
    if (memory_.size() >= kHugePage) settle_pages(memory_, before);
    data_ = memory_.data();
    capacity_ = memory_.size();
    const MutexLock lock(pool_->mutex_);
    pool_->stats_.used += capacity_ - before;
  }
  size_ = size;
  return {};
}

void Pool::put(MemoryMap memory) noexcept {
  const size_t size = memory.size();
  const size_t index = class_of(size);
  std::list<Idle> surplus;  // unmapped without the lock
  const MutexLock lock(mutex_);
  stats_.used -= size;
  if (size > capacity_) {  // keeping it would cost all the others
    ++stats_.dropped;
    surplus.push_back(Idle{std::move(memory), index, 0});
    return;
  }
  const bool room = has_memory_for([&] {
    mutex_.held();
    surplus.push_back(Idle{std::move(memory), index, now()});
    free_[index].push_back(surplus.begin());
  });
  if (!room) {
    ++stats_.dropped;
    return;
  }
  stats_.idle += size;
  idle_.splice(idle_.end(), surplus);
  surplus = evict(capacity_, 0);
}

std::list<Pool::Idle> Pool::evict(size_t keep, Nanos idle_before) {
  std::list<Idle> out;
  while (!idle_.empty() && (stats_.idle > keep || idle_.front().since < idle_before)) {
    const Idle& oldest = idle_.front();
    free_[oldest.index].pop_front();  // the oldest of all is the oldest of its size
    stats_.idle -= oldest.memory.size();
    ++stats_.dropped;
    out.splice(out.end(), idle_, idle_.begin());
  }
  return out;
}

void Pool::post(Ref<PostedBuffer> buffer) {
  if (!home_.here()) return;
  std::list<Posted> fresh, surplus;  // let go of without the lock
  fresh.push_back({std::move(buffer), now()});
  const MutexLock lock(mutex_);
  stats_.posted += fresh.front().buffer->size();
  posted_.splice(posted_.end(), fresh);
  surplus = withdraw(kMostPosted, 0);
}

Ref<PostedBuffer> Pool::take_posted(size_t size) {
  if (posted_count_.load(std::memory_order_relaxed) == 0 || !home_.here()) return nullptr;
  std::list<Posted> taken;
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(
      posted_, [&](const Posted& posted) { return posted.buffer->size() == size; });
  if (found == posted_.end()) return nullptr;
  taken.splice(taken.end(), posted_, found);
  stats_.posted -= size;
  posted_count_.store(posted_.size(), std::memory_order_relaxed);
  return std::move(taken.front().buffer);
}

std::list<Pool::Posted> Pool::withdraw(size_t keep, Nanos since_before) {
  std::list<Posted> out;
  while (!posted_.empty() && (posted_.size() > keep || stats_.posted > capacity_ ||
                              posted_.front().since < since_before)) {
    stats_.posted -= posted_.front().buffer->size();
    out.splice(out.end(), posted_, posted_.begin());
  }
  posted_count_.store(posted_.size(), std::memory_order_relaxed);
  return out;
}

void Pool::trim(Nanos idle_before, Nanos posted_before) {
  if (!home_.here()) return;
  std::list<Idle> old;
  std::list<Posted> unused;
  const MutexLock lock(mutex_);
  old = evict(capacity_, idle_before);
  unused = withdraw(kMostPosted, posted_before);
}

PoolStats Pool::stats() const {
  PoolStats stats;
  if (home_.here()) {
    const MutexLock lock(mutex_);
    stats = stats_;
  }
  stats.capacity = capacity_;
  return stats;
}

}  // namespace tw
