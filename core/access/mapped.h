// SPDX-License-Identifier: Apache-2.0
// Regions of the peer that are mapped here: operations on them are loads and stores of whoever
// wants them, and end before they return. The owner's process has no part in it, and may stand
// still.
#pragma once

#include <atomic>
#include <optional>
#include <unordered_map>
#include <vector>

#include "access/access.h"
#include "base/mutex.h"
#include "engine/copier.h"
#include "memory/mapped_memory.h"

namespace tw {

// Thread-safe.
class MappedRegions {
 public:
  explicit MappedRegions(Copier& copier) : copier_(copier) {}

  // kInternal: the memory is not what its region says.
  Status add(const wire::Region& region, Ref<MappedMemory> memory);
  // It was to be mapped, and is not.
  void refuse(uint64_t region, Status why);
  void remove(uint64_t region);
  void clear();
  bool holds(uint64_t region);
  // What refuse() was told; ok: nothing.
  Status refused(uint64_t region);
  size_t size() const;

  // Does all of it, or nothing. False: not all of it is mapped. Errors as of an operation.
  // `writing`: writes are under way to memory that is not; arena memory may be that, too.
  Result<bool> run(const AccessRequest& request, const std::optional<Signal>& signal,
                   bool writing = false);
  // The same of a batch, whose requests fit their regions.
  Result<bool> run(const AccessBatch& batch, const std::optional<Signal>& signal,
                   bool writing = false);
  // What has been done so far; a batch is one operation.
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Mapped {
    wire::Region region;
    Ref<MappedMemory> memory;
  };
  // One that an operation is inside of.
  struct Entered {
    wire::Region region;
    MappedMemory::Visit visit;
    std::byte* at(uint64_t offset) const { return visit->data() + region.address + offset; }
  };

  std::optional<Mapped> find(uint64_t region, bool writing);
  static Result<Entered> enter(const Mapped& mapped);
  // UNAVAILABLE: the link has ended, and what was read may be of the memory's next owner.
  Status run(const AccessRequest& request, const Entered& in);
  bool done(uint64_t bytes);

  Copier& copier_;
  std::atomic<uint64_t> operations_{0}, bytes_{0};
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Mapped> regions_ TW_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Status> refused_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw
