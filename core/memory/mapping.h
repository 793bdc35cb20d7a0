// SPDX-License-Identifier: Apache-2.0
// The reader's side of leases: slabs of another process, mapped privately, and views into them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/fd.h"
#include "base/fork.h"
#include "base/mutex.h"
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

// What the slabs of one peer take of this process, those included that only views keep.
class MappingTally final : public RefCounted {
 public:
  std::atomic<size_t> mappings{0}, bytes{0};  // each mapping has a descriptor
};

// One slab of a peer, mapped copy-on-write: writing to it is harmless to the owner. It lives until
// its last view goes, whatever becomes of the owner.
class SlabMapping final : public RefCounted {
 public:
  // INVALID_ARGUMENT when the descriptor is not a slab as announced.
  static Result<Ref<SlabMapping>> map(Fd fd, const SlabAnnouncement& announced,
                                      Ref<MappingTally> tally = make_ref<MappingTally>());

  const SlabAnnouncement& announced() const { return announced_; }
  // Those at `offset`, which lie within it.
  std::span<const std::byte> bytes(uint64_t offset, uint64_t length) const {
    return {map_.data() + offset, length};
  }
  // The pages of [begin, end), within the slab, as the owner goes on to write them, to be read
  // only. They outlive this. RESOURCE_EXHAUSTED.
  Result<MemoryMap> map_live(uint64_t begin, uint64_t end) const;

 private:
  friend class LeasedView;
  friend class PeerArena;
  SlabMapping(Fd fd, const SlabAnnouncement& announced, MemoryMap map, Ref<MappingTally> tally);
  ~SlabMapping() override;

  // Live views that overlap, directly or through others: pages up to `end`, an offset in the slab.
  // Blocks share no pages, so a cluster lies in one block, which its leases keep from being reused.
  struct Cluster {
    size_t end = 0;
    size_t views = 0;
    bool exposed = false;
    bool written = false;         // its one view at that time has been separated
    uint64_t faults = 0;          // page_faults() at some time before it was exposed
    LeasedView* first = nullptr;  // of its views, which are chained
  };
  using Clusters = std::map<size_t, Cluster>;  // by first page; disjoint

  Clusters::iterator cluster_at(size_t offset) TW_REQUIRES(mutex_);
  // False when private writes lie, or may come to lie, in [begin, end): `view` must map the bytes
  // for itself.
  bool enter(size_t begin, size_t end, LeasedView& view);
  // As PeerArena::held(), of bytes within this mapping.
  Ref<LeasedView> held(std::span<const std::byte> bytes);
  void expose(size_t begin);
  // False when other views are live there.
  bool claim(size_t begin);
  void leave(size_t begin, LeasedView& view) noexcept;
  void begin_exposure(Cluster& cluster) TW_REQUIRES(mutex_);
  // Whether the process may have made pages private since the cluster was exposed.
  bool touched(const Cluster& cluster) TW_REQUIRES(mutex_);

  const Fd fd_;
  const SlabAnnouncement announced_;
  const MemoryMap map_;
  const Ref<MappingTally> tally_;
  Mutex mutex_;
  Clusters clusters_ TW_GUARDED_BY(mutex_);
  uint64_t faults_ TW_GUARDED_BY(mutex_) = 0;  // page_faults() when last asked
};

// A region of a peer that has been found and checked.
struct Located {
  Ref<SlabMapping> mapping;
  std::span<const std::byte> bytes;
};

// Bytes in another process's arena, held on a lease. A fresh view shows the owner's bytes. Private
// writes through one view show in others of the same bytes that were live at that time.
class LeasedView final : public Listed<> {
 public:
  // `owner` is told of `id` when the last reference to the view goes. RESOURCE_EXHAUSTED, and no
  // call of `owner`, when the bytes need a mapping of their own and there is none to be had.
  static Result<Ref<LeasedView>> make(const Located& located, Ref<LeaseReturn> owner, uint64_t id);

  std::span<const std::byte> bytes() const { return bytes_; }
  uint64_t id() const { return id_; }
  // The bytes as the owner goes on to write them, to be read only: where they lie page for page in
  // the file, which outlives this view. They begin at a page, as those of a block that may be
  // leased do. RESOURCE_EXHAUSTED; INVALID_ARGUMENT: they begin elsewhere.
  Result<MemoryMap> map_live() const;
  // What the owner calls `bytes`, which are among bytes().
  RegionRef region(std::span<const std::byte> bytes) const;
  // Call before code of the user can reach the bytes: from then on private writes must be assumed
  // and are dropped at the end. Costs 0.3 us then if the process has taken no page fault meanwhile;
  // else about 2 us, and up to 2 us for each MB that was read.
  void expose();
  // Call instead of expose(), ahead of code that will write: its writes show in no other view,
  // earlier or later ones. The bytes may move, so nobody may have been given them before.
  // RESOURCE_EXHAUSTED: no mapping is to be had.
  Status separate();

 private:
  friend class SlabMapping;
  LeasedView(const Located& located, Ref<LeaseReturn> owner, uint64_t id)
      : mapping_(located.mapping), bytes_(located.bytes), owner_(std::move(owner)), id_(id) {}
  void dispose() noexcept override;
  bool in_mapping() const { return own_.data() == nullptr && !bytes_.empty(); }

  const Birthplace home_;
  const Ref<SlabMapping> mapping_;
  std::span<const std::byte> bytes_;
  const Ref<LeaseReturn> owner_;
  const uint64_t id_;
  size_t first_page_ = 0;       // offset in the slab
  LeasedView* next_ = nullptr;  // of its cluster; guarded by the mapping
  MemoryMap own_;               // set when the shared mapping held private writes to these bytes
};

// All slabs that one peer has handed over. Thread-safe.
class PeerArena final : public RefCounted {
 public:
  // A slab's index is less than that.
  static constexpr uint32_t kMaxSlabs = 4096;

  // Most address space and descriptors that this peer may make us hold at a time.
  explicit PeerArena(size_t bytes = size_t{1} << 40, size_t descriptors = fair_descriptors())
      : limit_(bytes), descriptors_(descriptors) {}

  // An eighth of what the process may open (ulimit -n), at most 1024.
  static size_t fair_descriptors();

  // Maps a slab. INVALID_ARGUMENT when the descriptor is not what is announced or the index and
  // generation are in use. RESOURCE_EXHAUSTED past the limits, or when the system has no means to
  // map it: the slab is known, and refused.
  Status add(Fd fd, const SlabAnnouncement& announced);
  // A slab whose descriptor was lost on the way. RESOURCE_EXHAUSTED, or as add().
  Status refuse(const SlabAnnouncement& announced);
  // The owner has dropped the slab: its references are dead, live views stay readable.
  Status drop(uint32_t index, uint32_t generation);

  // Where `region` lies here; it was named by the peer and is checked in full. INTERNAL when it is
  // not inside a slab that this peer has handed over and not dropped; RESOURCE_EXHAUSTED when that
  // slab was refused.
  Result<Located> locate(const RegionRef& region);

  // A view that holds all of `bytes` as their owner sees them: none of their pages was written to
  // here. Null: there is none. Somebody keeps `bytes` meanwhile.
  Ref<LeasedView> held(std::span<const std::byte> bytes);

 private:
  struct Entry {
    uint32_t generation;       // the last one seen under this index
    Ref<SlabMapping> mapping;  // null once dropped, or refused
    Status refused;            // why there is no mapping of a slab that was not dropped
  };

  Result<Entry*> enter(const SlabAnnouncement& announced) TW_REQUIRES(mutex_);
  Status map(Fd fd, const SlabAnnouncement& announced, Entry& entry) TW_REQUIRES(mutex_);

  const size_t limit_;
  const size_t descriptors_;
  const Ref<MappingTally> tally_ = make_ref<MappingTally>();
  Mutex mutex_;
  std::map<uint32_t, Entry> slabs_ TW_GUARDED_BY(mutex_);  // by index
};

}  // namespace tw
