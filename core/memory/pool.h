// SPDX-License-Identifier: Apache-2.0
// The pool: receive buffers in ordinary memory, recycled because fresh pages are dear.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>

#include "base/clock.h"
#include "base/declared.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/memfd.h"
#include "memory/posted_buffer.h"

namespace tw {

class Pool;

// Writable memory with one owner; goes back to its pool, which it keeps alive, with its last
// reference. Nothing of the pool's is stored in the memory itself.
class PoolBuffer final : public RefCounted {
 public:
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }          // bytes asked for
  size_t capacity() const { return capacity_; }  // bytes that may be used
  std::span<std::byte> bytes() const { return {data_, size_}; }
  // Makes room for `size` bytes; the first ones are what they were, and may move. Only for one of
  // Pool::kSmallest at least that nobody else has been given. RESOURCE_EXHAUSTED.
  Status extend(size_t size);

 private:
  friend class Pool;
  PoolBuffer(Ref<Pool> pool, MemoryMap memory, size_t size);
  explicit PoolBuffer(size_t small);
  ~PoolBuffer() override;
  void dispose() noexcept override;

  const Ref<Pool> pool_;  // null for small buffers
  MemoryMap memory_;      // empty for small buffers
  std::byte* data_;
  size_t size_;
  size_t capacity_;
};

struct PoolStats {
  size_t capacity = 0, used = 0, idle = 0, posted = 0;
  uint64_t recycled = 0, fresh = 0, dropped = 0;
};
inline constexpr Counter<PoolStats> kPoolStats[] = {
    {&PoolStats::capacity,
     {"pool_capacity",
      {"pool_capacity_bytes", "bytes", Metric::Kind::kGauge,
       "Most memory that is kept for what is received next."}}},
    {&PoolStats::used,
     {"pool_used",
      {"pool_used_bytes", "bytes", Metric::Kind::kGauge, "Received memory that is in use."}}},
    {&PoolStats::idle,
     {"pool_idle",
      {"pool_idle_bytes", "bytes", Metric::Kind::kGauge,
       "Memory kept for what is received next."}}},
    {&PoolStats::posted,
     {"pool_posted",
      {"pool_posted_bytes", "bytes", Metric::Kind::kGauge,
       "Memory made ready for the bytes of a message."}}},
    {&PoolStats::recycled,
     {"pool_recycled",
      {"pool_recycled_buffers", "buffers", Metric::Kind::kCounter,
       "Buffers that were made of kept memory."}}},
    {&PoolStats::fresh,
     {"pool_fresh",
      {"pool_fresh_buffers", "buffers", Metric::Kind::kCounter,
       "Buffers that needed new memory of the system's."}}},
    {&PoolStats::dropped,
     {"pool_dropped",
      {"pool_dropped_buffers", "buffers", Metric::Kind::kCounter,
       "Kept buffers that were given back to the system."}}},
};
static_assert(complete(kPoolStats));

// Thread-safe.
class Pool final : public RefCounted {
 public:
  // `capacity`: most bytes kept idle.
  explicit Pool(size_t capacity) : capacity_(capacity) {}

  // A buffer of `size` bytes with undefined contents: page aligned from kSmallest up, aligned to 64
  // below. RESOURCE_EXHAUSTED when the system has no memory.
  Result<Ref<PoolBuffer>> get(size_t size);
  // One that was used before, if such a one is idle; else null.
  Ref<PoolBuffer> recycled(size_t size);

  // For a segment of exactly its size. Of too many the oldest go, so this one perhaps.
  void post(Ref<PostedBuffer> buffer);
  // The one posted first of this size; null: there is none.
  Ref<PostedBuffer> take_posted(size_t size);

  // Most bytes kept idle, and again most bytes posted.
  size_t capacity() const { return capacity_; }

  // Gives back buffers that have been idle since before `idle_before`, and those that have been
  // posted since before `posted_before`.
  void trim(Nanos idle_before = kForever, Nanos posted_before = kForever);

  PoolStats stats() const;

  // Below this nothing is recycled: the allocator of the process does better.
  static constexpr size_t kSmallest = 32 << 10;
  static constexpr size_t kLargest = size_t{1} << 48;
  // Enough for a stream whose next messages come while one is handed out.
  static constexpr size_t kMostPosted = 4;
  // From this size on buffers lie in huge pages; those that are no larger than one lie side by
  // side. One that is smaller and lives long would keep a whole huge page.
  static constexpr size_t kSmallestHuge = 512 << 10;
  // Four sizes for each power of two: at most a fifth of a buffer is unused.
  static constexpr size_t class_of(size_t size);
  static constexpr size_t class_size(size_t index);

 private:
  friend class PoolBuffer;
  struct Idle {
    MemoryMap memory;
    size_t index;
    Nanos since;
  };
  struct Posted {
    Ref<PostedBuffer> buffer;
    Nanos since;
  };
  static constexpr size_t kSmallestPower = 15;
  static_assert(kSmallest == size_t{1} << kSmallestPower);
  static constexpr size_t kClasses = 4 * (48 - kSmallestPower) + 1;

  ~Pool() override = default;
  MemoryMap take_idle(size_t index);
  Result<MemoryMap> make(size_t capacity);
  void put(MemoryMap memory) noexcept;
  // Takes idle buffers out, oldest first, while more than `keep` bytes are idle or the oldest has
  // been since before `idle_before`. The caller lets them go without the lock.
  std::list<Idle> evict(size_t keep, Nanos idle_before) TW_REQUIRES(mutex_);
  // The same for posted ones, more than `keep` of them or more bytes than the capacity.
  std::list<Posted> withdraw(size_t keep, Nanos since_before) TW_REQUIRES(mutex_);

  const Birthplace home_;
  const size_t capacity_;
  mutable Mutex mutex_;
  // Oldest first; and those of each size, oldest first.
  std::list<Idle> idle_ TW_GUARDED_BY(mutex_);
  MemoryMap fresh_ TW_GUARDED_BY(mutex_);  // of which buffers are cut that share huge pages
  std::array<std::list<std::list<Idle>::iterator>, kClasses> free_ TW_GUARDED_BY(mutex_);
  std::list<Posted> posted_ TW_GUARDED_BY(mutex_);  // oldest first
  PoolStats stats_ TW_GUARDED_BY(mutex_);
  std::atomic<size_t> posted_count_{0};  // of posted_
};

constexpr size_t Pool::class_of(size_t size) {
  if (size <= kSmallest) return 0;
  const auto power = static_cast<size_t>(std::bit_width(size - 1)) - 1;  // of two, below `size`
  const size_t steps = ((size - 1) >> (power - 2)) + 1;  // quarters of it that hold `size`: 5 to 8
  return (power - kSmallestPower) * 4 + (steps - 4);
}

constexpr size_t Pool::class_size(size_t index) {
  const size_t power = kSmallest << (index / 4);
  return power + power / 4 * (index % 4);
}

}  // namespace tw
