// The reader's side of leases: slabs of another process, mapped privately, and views into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "base/fd.h"
#include "base/fork.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/memfd.h"
#include "memory/region.h"

namespace tw {

// Told once when a view's lease may go back to the owner; views keep it alive. Called on whichever
// thread drops the last reference, with no lock held, so it must neither block nor throw.
class LeaseReturn : public RefCounted {
 public:
  virtual void lease_done(uint64_t id) noexcept = 0;
};

// What the owner announces together with the descriptor of a slab.
struct SlabAnnouncement {
  uint32_t index = 0;
  uint32_t generation = 0;
  uint64_t size = 0;  // bytes
};

class LeasedView;

// One slab of a peer, mapped copy-on-write: writing to it is harmless to the owner. It lives until
// its last view goes, whatever becomes of the owner.
class SlabMapping final : public RefCounted {
 public:
  // INVALID_ARGUMENT when the descriptor is not a slab as announced.
  static Result<Ref<SlabMapping>> map(Fd fd, const SlabAnnouncement& announced);

  const SlabAnnouncement& announced() const { return announced_; }

 private:
  friend class LeasedView;
  friend class PeerArena;
  friend Ref<SlabMapping> make_ref<SlabMapping>(Fd&&, const SlabAnnouncement&, MemoryMap&&);
  SlabMapping(Fd fd, const SlabAnnouncement& announced, MemoryMap map)
      : fd_(std::move(fd)), announced_(announced), map_(std::move(map)) {}

  // Pages [begin, end), offsets in the slab.
  struct Pages {
    size_t begin = 0;
    size_t end = 0;
    bool exposed = false;
  };

  Result<Ref<LeasedView>> view(const RegionRef& region, Ref<LeaseReturn> owner, uint64_t id);
  void end_view(LeasedView& view) noexcept;

  const Fd fd_;
  const SlabAnnouncement announced_;
  const MemoryMap map_;
  std::mutex mutex_;
  std::multimap<size_t, Pages> live_;  // by first page; guarded by mutex_
};

// Bytes in another process's arena, held on a lease. A fresh view shows the owner's bytes. Two live
// views of the same bytes show each other's private writes.
class LeasedView final : public RefCounted {
 public:
  std::span<const std::byte> bytes() const { return bytes_; }
  uint64_t id() const { return id_; }
  // Call before code of the user can reach the bytes: from then on private writes must be assumed
  // and are dropped at the end. Costs about 2 us then, and up to 2 us for each MB that was read.
  void expose();

 private:
  friend class SlabMapping;
  LeasedView(Ref<SlabMapping> mapping, std::multimap<size_t, SlabMapping::Pages>::iterator pages,
             MemoryMap own, std::span<const std::byte> bytes, Ref<LeaseReturn> owner, uint64_t id);
  void dispose() noexcept override;

  const Birthplace home_;
  const Ref<SlabMapping> mapping_;
  const std::multimap<size_t, SlabMapping::Pages>::iterator pages_;
  const MemoryMap own_;  // set when the shared mapping held private writes to these bytes
  const std::span<const std::byte> bytes_;
  const Ref<LeaseReturn> owner_;
  const uint64_t id_;
};

// All slabs that one peer has handed over. Thread-safe.
class PeerArena final : public RefCounted {
 public:
  // `limit`: most bytes of address space that this peer may make us map at a time.
  explicit PeerArena(size_t limit = size_t{1} << 40) : limit_(limit) {}

  // Maps a slab. INVALID_ARGUMENT when the descriptor is not what is announced or the index and
  // generation are in use; RESOURCE_EXHAUSTED past the limit.
  Status add(Fd fd, const SlabAnnouncement& announced);
  // The owner has dropped the slab: its references are dead, live views stay readable.
  Status drop(uint32_t index, uint32_t generation);

  // A view of `region`, read from a peer and therefore checked in full; `owner` is told of `id` when
  // the last reference to the view goes. INTERNAL, and no call of `owner`, when the region is not
  // inside a slab that this peer has handed over.
  Result<Ref<LeasedView>> lease(const RegionRef& region, Ref<LeaseReturn> owner, uint64_t id);

 private:
  static constexpr size_t kMaxSlabs = 4096;

  const size_t limit_;
  std::mutex mutex_;
  std::map<uint32_t, Ref<SlabMapping>> slabs_;    // by index; guarded by mutex_
  std::map<uint32_t, uint32_t> last_generation_;  // of indices ever used; guarded by mutex_
  size_t mapped_ = 0;                             // guarded by mutex_
};

}  // namespace tw
