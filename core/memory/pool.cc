#include "memory/pool.h"

#include <sys/mman.h>

#include <new>
#include <string>

namespace tw {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr std::align_val_t kSmallAlignment{64};

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
  if (size > kLargest) {
    return Status(Code::kResourceExhausted,
                  "no receive buffer has " + std::to_string(size) + " bytes");
  }
  if (!home_.here()) {
    return Status(Code::kFailedPrecondition,
                  "this pool belongs to the process that forked this one; make a new one here");
  }
  const size_t index = class_of(size);
  const size_t capacity = class_size(index);
  MemoryMap memory;
  {
    std::lock_guard lock(mutex_);
    stats_.used += capacity;
    if (auto& candidates = free_[index]; !candidates.empty()) {
      const auto newest = candidates.back();
      candidates.pop_back();
      memory = std::move(newest->memory);
      idle_.erase(newest);
      stats_.idle -= capacity;
      ++stats_.recycled;
    } else {
      ++stats_.fresh;
    }
  }
  if (!memory.data()) {
    auto map = MemoryMap::map(-1, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
    if (!map) {
      std::lock_guard lock(mutex_);
      stats_.used -= capacity;
      --stats_.fresh;
      return map.status();
    }
    memory = std::move(*map);
    // A wish: without huge pages everything works, slower.
    if (capacity >= kHugePage) madvise(memory.data(), capacity, MADV_HUGEPAGE);
  }
  return Ref<PoolBuffer>::adopt(new PoolBuffer(Ref<Pool>::share(this), std::move(memory), size));
}

void Pool::put(MemoryMap memory) noexcept {
  const size_t size = memory.size();
  const size_t index = class_of(size);
  std::list<Idle> surplus;  // unmapped without the lock
  std::lock_guard lock(mutex_);
  stats_.used -= size;
  if (size > capacity_) {  // keeping it would cost all the others
    ++stats_.dropped;
    surplus.push_back(Idle{std::move(memory), index, 0});
    return;
  }
  stats_.idle += size;
  idle_.push_back(Idle{std::move(memory), index, now()});
  free_[index].push_back(std::prev(idle_.end()));
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

void Pool::trim(Nanos idle_before) {
  if (!home_.here()) return;
  std::list<Idle> old;
  std::lock_guard lock(mutex_);
  old = evict(capacity_, idle_before);
}

PoolStats Pool::stats() const {
  PoolStats stats;
  if (home_.here()) {
    std::lock_guard lock(mutex_);
    stats = stats_;
  }
  stats.capacity = capacity_;
  return stats;
}

}  // namespace tw
