// SPDX-License-Identifier: Apache-2.0
// Memory that is made to be accessed: a file of its own, which peers of this host map and write to.
// Nothing in it is ever believed by the runtime, and it is never used for anything else.
//
// The file has the user's bytes and, behind them, a page with SharedWords.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/declared.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/memfd.h"

namespace tw {

// By which whoever changes a word wakes who waits for that, in any process (engine/word_waits.h).
// Peers can write here.
struct SharedWords {
  std::atomic<uint32_t> changes{0};
  std::atomic<uint32_t> sleepers{0};
};
static_assert(sizeof(SharedWords) == 8);

class SharedMemories;

class SharedMemory final : public Listed<> {
 public:
  std::byte* data() const { return map_.data(); }
  size_t size() const { return size_; }  // bytes asked for
  size_t file_size() const { return map_.size(); }
  int file() const { return file_.get(); }
  SharedWords& words() const;
  // Where a byte of it lies in the file.
  uint64_t offset_of(const std::byte* at) const { return static_cast<uint64_t>(at - data()); }

  // Peers that map it, and those whose device stores here without telling anybody.
  std::atomic<uint32_t> mappers{0};
  std::atomic<uint32_t> devices{0};
  // How often those who wait for words of it were told to look at more than the words.
  std::atomic<uint32_t> nudges{0};

 private:
  friend class SharedMemories;
  SharedMemory(SharedMemories& home, Fd file, MemoryMap map, size_t size)
      : home_(home), file_(std::move(file)), map_(std::move(map)), size_(size) {}
  void dispose() noexcept override;

  const Birthplace birthplace_;
  SharedMemories& home_;
  const Fd file_;
  const MemoryMap map_;
  const size_t size_;
};

struct SharedStats {
  size_t capacity = 0, used = 0, memories = 0;
};
inline constexpr Counter<SharedStats> kSharedStats[] = {
    {&SharedStats::capacity,
     {"shared_capacity",
      {"shared_capacity_bytes", "bytes", Metric::Kind::kGauge,
       "Most memory that may be made for peers to access."}}},
    {&SharedStats::used,
     {"shared_used",
      {"shared_used_bytes", "bytes", Metric::Kind::kGauge,
       "Memory that was made for peers to access."}}},
    {&SharedStats::memories,
     {"shared_memories",
      {"shared_memories", "memories", Metric::Kind::kGauge,
       "In how many pieces, each with a file of its own."}}},
};
static_assert(complete(kSharedStats));

// All of a process. Thread-safe; outlives what it has made.
class SharedMemories {
 public:
  explicit SharedMemories(size_t limit) : limit_(limit) {}

  // Zeroed, at a page. RESOURCE_EXHAUSTED names TENSORWIRE_SHARED_MEMORY_BYTES.
  Result<Ref<SharedMemory>> make(size_t size);
  // The one that holds all of [p, p + size), or null.
  Ref<SharedMemory> find(const void* p, size_t size);
  SharedStats stats() const;

 private:
  friend class SharedMemory;
  void forget(const SharedMemory& memory) noexcept;

  const size_t limit_;
  mutable Mutex mutex_;
  size_t bytes_ TW_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, SharedMemory*> memories_ TW_GUARDED_BY(mutex_);  // by their data()
};

}  // namespace tw
