// SPDX-License-Identifier: Apache-2.0
#include "memory/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "memory/private_pages.h"

namespace tw {
namespace {

std::string name_of(uint32_t index, uint32_t generation) {
  return "slab " + std::to_string(index) + ", generation " + std::to_string(generation);
}

// Private and writable: a framework that ignores the read-only flag writes to copies of its own.
Result<MemoryMap> map_private(const Fd& fd, size_t size, size_t offset) {
  return MemoryMap::map_lazily(fd.get(), size, MAP_PRIVATE, offset);
}

}  // namespace

SlabMapping::SlabMapping(Fd fd, const SlabAnnouncement& announced, MemoryMap map,
                         Ref<MappingTally> tally)
    : fd_(std::move(fd)), announced_(announced), map_(std::move(map)), tally_(std::move(tally)) {
  tally_->mappings.fetch_add(1, std::memory_order_relaxed);
  tally_->bytes.fetch_add(announced_.size, std::memory_order_relaxed);
}

SlabMapping::~SlabMapping() {
  tally_->mappings.fetch_sub(1, std::memory_order_relaxed);
  tally_->bytes.fetch_sub(announced_.size, std::memory_order_relaxed);
}

Result<Ref<SlabMapping>> SlabMapping::map(Fd fd, const SlabAnnouncement& announced,
                                          Ref<MappingTally> tally) {
  if (announced.size == 0 || announced.size % page_size() != 0) {
    return Status(Code::kInvalidArgument, name_of(announced.index, announced.generation) + ": " +
                                              std::to_string(announced.size) +
                                              " bytes are no whole number of pages");
  }
  Status status = check_memfd(fd.get(), announced.size, kOwnedSeals, O_RDONLY);
  if (!status.ok()) return status;
  auto map = map_private(fd, announced.size, 0);
  if (!map) return map.status();
  return Ref<SlabMapping>::adopt(
      new SlabMapping(std::move(fd), announced, std::move(*map), std::move(tally)));
}

Result<MemoryMap> SlabMapping::map_live(uint64_t begin, uint64_t end) const {
  const uint64_t first_page = begin / page_size() * page_size();
  return MemoryMap::map(fd_.get(), round_up(end, page_size()) - first_page, PROT_READ, MAP_SHARED,
                        first_page);
}

SlabMapping::Clusters::iterator SlabMapping::cluster_at(size_t offset) {
  return std::prev(clusters_.upper_bound(offset));
}

bool SlabMapping::enter(size_t begin, size_t end, LeasedView& view) {
  const MutexLock lock(mutex_);
  auto first = clusters_.lower_bound(begin);
  if (first != clusters_.begin() && std::prev(first)->second.end > begin) --first;
  Cluster joined{end, 1, false, false, ~uint64_t{0}};
  size_t joined_begin = begin;
  auto last = first;
  for (; last != clusters_.end() && last->first < end; ++last) {
    joined_begin = std::min(joined_begin, last->first);
    joined.end = std::max(joined.end, last->second.end);
    joined.views += last->second.views;
    if (last->second.exposed) {
      joined.exposed = true;
      joined.faults = std::min(joined.faults, last->second.faults);
    }
    joined.written = joined.written || last->second.written;
  }
  if (joined.written) return false;
  if (joined.exposed && touched(joined) && has_private_pages(map_.data() + begin, end - begin))
    return false;
  if (first == last) {
    joined.first = &view;
    clusters_.emplace(joined_begin, joined);
    return true;
  }
  joined.first = &view;
  LeasedView* end_of_chain = &view;
  for (auto each = first; each != last; ++each) {
    end_of_chain->next_ = each->second.first;
    while (end_of_chain->next_) end_of_chain = end_of_chain->next_;
  }
  // Without memory of its own: what was joined must not be lost.
  auto node = clusters_.extract(first++);
  clusters_.erase(first, last);
  node.key() = joined_begin;
  node.mapped() = joined;
  clusters_.insert(std::move(node));
  return true;
}

void SlabMapping::expose(size_t begin) {
  const MutexLock lock(mutex_);
  begin_exposure(cluster_at(begin)->second);
}

void SlabMapping::begin_exposure(Cluster& cluster) {
  if (cluster.exposed) return;
  cluster.exposed = true;
  cluster.faults = faults_;
}

bool SlabMapping::touched(const Cluster& cluster) {
  faults_ = page_faults();
  return faults_ == 0 || faults_ != cluster.faults;
}

bool SlabMapping::claim(size_t begin) {
  const MutexLock lock(mutex_);
  Cluster& cluster = cluster_at(begin)->second;
  if (cluster.views != 1) return false;
  begin_exposure(cluster);
  cluster.written = true;
  return true;
}

void SlabMapping::leave(size_t begin, LeasedView& view) noexcept {
  const MutexLock lock(mutex_);
  const auto at = cluster_at(begin);
  Cluster& cluster = at->second;
  LeasedView** link = &cluster.first;
  while (*link != &view) link = &(*link)->next_;
  *link = view.next_;
  if (--cluster.views != 0) return;
  if (cluster.exposed && touched(cluster))
    drop_private_pages(map_.data() + at->first, cluster.end - at->first);
  clusters_.erase(at);
}

Ref<LeasedView> SlabMapping::held(std::span<const std::byte> bytes) {
  const auto begin = static_cast<size_t>(bytes.data() - map_.data());
  const size_t end = begin + bytes.size();
  const MutexLock lock(mutex_);
  const auto after = clusters_.upper_bound(begin);
  if (after == clusters_.begin()) return nullptr;
  Cluster& cluster = std::prev(after)->second;
  if (cluster.written || cluster.end < end) return nullptr;
  if (cluster.exposed && touched(cluster)) {
    const size_t first = begin & ~(page_size() - 1);
    if (has_private_pages(map_.data() + first, round_up(end, page_size()) - first)) return nullptr;
  }
  for (LeasedView* view = cluster.first; view; view = view->next_) {
    const bool here = view->bytes_.data() <= bytes.data() &&
                      bytes.data() + bytes.size() <= view->bytes_.data() + view->bytes_.size();
    if (here && view->try_retain()) return Ref<LeasedView>::adopt(view);
  }
  return nullptr;
}

Result<Ref<LeasedView>> LeasedView::make(const Located& located, Ref<LeaseReturn> owner,
                                         uint64_t id) {
  SlabMapping& mapping = *located.mapping;
  const size_t page = page_size();
  const auto offset = static_cast<size_t>(located.bytes.data() - mapping.map_.data());
  const size_t begin = offset & ~(page - 1);
  const size_t end = std::max(round_up(offset + located.bytes.size(), page), begin + page);
  std::unique_ptr<LeasedView> view(new LeasedView(located, std::move(owner), id));
  view->first_page_ = begin;
  // One byte past the end of the slab names no page: an empty view there needs none.
  if (located.bytes.empty()) {
    view->bytes_ = {};
  } else if (!mapping.enter(begin, end, *view)) {
    auto own = map_private(mapping.fd_, end - begin, begin);
    if (!own) return own.status();
    view->own_ = std::move(*own);
    view->bytes_ = {view->own_.data() + (offset - begin), located.bytes.size()};
  }
  return Ref<LeasedView>::adopt(view.release());
}

Result<MemoryMap> LeasedView::map_live() const {
  const std::byte* const base = own_.data() ? own_.data() : mapping_->map_.data();
  const size_t offset = static_cast<size_t>(bytes_.data() - base) + (own_.data() ? first_page_ : 0);
  if (offset % page_size() != 0)
    return Status{Code::kInvalidArgument, "the leased bytes do not begin at a page"};
  return mapping_->map_live(offset, offset + bytes_.size());
}

RegionRef LeasedView::region(std::span<const std::byte> bytes) const {
  const std::byte* const base = own_.data() ? own_.data() - first_page_ : mapping_->map_.data();
  const SlabAnnouncement& slab = mapping_->announced();
  return {slab.index, slab.generation, static_cast<uint64_t>(bytes.data() - base), bytes.size()};
}

void LeasedView::expose() {
  if (home_.here() && in_mapping()) mapping_->expose(first_page_);
}

Status LeasedView::separate() {
  if (!home_.here() || !in_mapping() || mapping_->claim(first_page_)) return {};
  const auto offset = static_cast<size_t>(bytes_.data() - mapping_->map_.data());
  auto own = map_private(mapping_->fd_, round_up(offset + bytes_.size(), page_size()) - first_page_,
                         first_page_);
  if (!own) return own.status();
  own_ = std::move(*own);
  bytes_ = {own_.data() + (offset - first_page_), bytes_.size()};
  mapping_->leave(first_page_, *this);
  return {};
}

void LeasedView::dispose() noexcept {
  if (!home_.here()) return;  // the lease is the parent's
  if (in_mapping()) mapping_->leave(first_page_, *this);
  owner_->lease_done(id_);
  delete this;
}

size_t PeerArena::fair_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return std::clamp<size_t>(limit.rlim_cur / 8, 8, 1024);
}

// The entry of a new slab, in the place of the one before, which is dead.
Result<PeerArena::Entry*> PeerArena::enter(const SlabAnnouncement& announced) {
  const auto at = slabs_.find(announced.index);
  if (announced.index >= kMaxSlabs ||
      (at != slabs_.end() && announced.generation <= at->second.generation)) {
    return Status(Code::kInvalidArgument, "the peer announced " +
                                              name_of(announced.index, announced.generation) +
                                              ", which is no new slab");
  }
  return &slabs_.insert_or_assign(announced.index, Entry{announced.generation, nullptr, {}})
              .first->second;
}

Status PeerArena::map(Fd fd, const SlabAnnouncement& announced, Entry& entry) {
  const size_t bytes = tally_->bytes.load(std::memory_order_relaxed);
  if (announced.size > limit_ || bytes > limit_ - announced.size) {
    return {Code::kResourceExhausted, std::to_string(announced.size) + " bytes on top of " +
                                          std::to_string(bytes) + ": more than the " +
                                          std::to_string(limit_) + " bytes allowed"};
  }
  if (tally_->mappings.load(std::memory_order_relaxed) >= descriptors_) {
    return {Code::kResourceExhausted, "more than the " + std::to_string(descriptors_) +
                                          " slabs that this process keeps open for one peer"};
  }
  auto mapping = SlabMapping::map(std::move(fd), announced, tally_);
  if (!mapping) return mapping.status();
  entry.mapping = std::move(*mapping);
  return {};
}

Status PeerArena::add(Fd fd, const SlabAnnouncement& announced) {
  const MutexLock lock(mutex_);
  auto entry = enter(announced);
  if (!entry) return entry.status();
  Status status = map(std::move(fd), announced, **entry);
  if (status.ok()) return status;
  status = {status.code(), "the peer announced " + name_of(announced.index, announced.generation) +
                               ": " + status.details()};
  return (*entry)->refused = std::move(status);
}

Status PeerArena::refuse(const SlabAnnouncement& announced) {
  const MutexLock lock(mutex_);
  auto entry = enter(announced);
  if (!entry) return entry.status();
  return (*entry)->refused = {Code::kResourceExhausted,
                              "there was no descriptor left for " +
                                  name_of(announced.index, announced.generation) +
                                  " of the peer: raise the limit of open files (ulimit -n)"};
}

Status PeerArena::drop(uint32_t index, uint32_t generation) {
  Ref<SlabMapping> mapping;  // unmapped after the lock is gone
  const MutexLock lock(mutex_);
  const auto at = slabs_.find(index);
  if (at == slabs_.end() || at->second.generation != generation ||
      (!at->second.mapping && at->second.refused.ok())) {
    return {Code::kInternal,
            "the peer dropped " + name_of(index, generation) + ", which it does not share"};
  }
  std::swap(mapping, at->second.mapping);
  at->second.refused = {};
  return {};
}

Result<Located> PeerArena::locate(const RegionRef& region) {
  const auto wrong = [&region](const std::string& why) {
    return Status(Code::kInternal, "the peer named memory at " +
                                       name_of(region.slab, region.generation) + ", offset " +
                                       std::to_string(region.offset) + ", length " +
                                       std::to_string(region.length) + ": " + why);
  };
  const MutexLock lock(mutex_);
  const auto at = slabs_.find(region.slab);
  if (at == slabs_.end() || region.generation > at->second.generation)
    return wrong("it has not shared that slab");
  if (region.generation == at->second.generation && !at->second.refused.ok())
    return at->second.refused;
  if (region.generation < at->second.generation || !at->second.mapping)
    return wrong("that generation of the slab is dead, its owner has dropped it");
  const SlabMapping& mapping = *at->second.mapping;
  const size_t size = mapping.announced().size;
  if (region.offset > size || region.length > size - region.offset)
    return wrong("the slab has " + std::to_string(size) + " bytes");
  return Located{at->second.mapping, mapping.bytes(region.offset, region.length)};
}

Ref<LeasedView> PeerArena::held(std::span<const std::byte> bytes) {
  Ref<SlabMapping> found;
  {
    const MutexLock lock(mutex_);
    for (const auto& [index, entry] : slabs_) {
      if (!entry.mapping) continue;
      const MemoryMap& map = entry.mapping->map_;
      if (bytes.data() < map.data() || bytes.data() >= map.data() + map.size()) continue;
      found = entry.mapping;
      break;
    }
  }
  return found ? found->held(bytes) : nullptr;
}

}  // namespace tw
