// SPDX-License-Identifier: Apache-2.0
#include "memory/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <new>
#include <string>

#include "memory/huge_pages.h"

namespace tw {
namespace {

// A forked child has no business there, and would keep the memory from being freed.
Result<MemoryMap> for_us(Result<MemoryMap> map) {
  if (map) (void)madvise(map->data(), map->size(), MADV_DONTFORK);
  return map;
}

}  // namespace

Result<Fd> Door::build() {
  auto file = make_memfd("tensorwire-door", page_size());
  if (!file) return file.status();
  if (Status status = seal_memfd(file->get(), kSharedSeals); !status.ok()) return status;
  auto map = MemoryMap::map(file->get(), page_size(), PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!map) return map.status();
  map_ = std::move(*map);
  auto* const shared = new (map_.data()) DoorWords;
  shared->state.store(inner_.state.load(std::memory_order_relaxed), std::memory_order_relaxed);
  words_.store(shared, std::memory_order_release);
  return std::move(*file);
}

Result<Ref<MappedMemory>> MappedMemory::map(Fd file, Fd door, uint64_t file_size,
                                            Ref<MappingTally> tally) {
  if (file_size % page_size() != 0 || file_size < 2 * page_size())
    return Status{Code::kInvalidArgument, std::to_string(file_size) +
                                              " bytes of shared memory are no whole number of "
                                              "pages, or too few"};
  const int flags = fcntl(file.get(), F_GETFL);
  const int access = flags >= 0 && (flags & O_ACCMODE) == O_RDWR ? O_RDWR : O_RDONLY;
  if (Status status = check_memfd(file.get(), file_size, kSharedSeals, access); !status.ok())
    return status;
  auto threshold = map_door(std::move(door));
  if (!threshold) return threshold.status();
  const bool writable = access == O_RDWR;
  auto map = for_us(MemoryMap::map(file.get(), file_size,
                                   writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED));
  if (!map) return map.status();
  wish_huge_pages(map->data(), map->size());
  std::byte* const data = map->data();
  return Ref<MappedMemory>::adopt(new MappedMemory(std::move(*map), data, file_size - page_size(),
                                                   std::move(*threshold), writable,
                                                   std::move(tally)));
}

Result<Ref<MappedMemory>> MappedMemory::map(const SlabMapping& slab, uint64_t offset,
                                            uint64_t length, MemoryMap door,
                                            Ref<MappingTally> tally) {
  const uint64_t size = slab.announced().size;
  if (length == 0 || offset > size || length > size - offset)
    return Status{Code::kInvalidArgument, std::to_string(length) + " bytes at " +
                                              std::to_string(offset) + " of a slab of " +
                                              std::to_string(size) + " bytes"};
  auto map = for_us(slab.map_live(offset, offset + length));
  if (!map) return map.status();
  wish_huge_pages(map->data(), map->size());
  std::byte* const data = map->data() + offset % page_size();
  return Ref<MappedMemory>::adopt(
      new MappedMemory(std::move(*map), data, length, std::move(door), false, std::move(tally)));
}

Result<MemoryMap> MappedMemory::map_door(Fd door) {
  if (Status status = check_memfd(door.get(), page_size(), kSharedSeals, O_RDWR); !status.ok())
    return status;
  return for_us(MemoryMap::map(door.get(), page_size(), PROT_READ | PROT_WRITE, MAP_SHARED));
}

MappedMemory::MappedMemory(MemoryMap map, std::byte* data, size_t size, MemoryMap door,
                           bool writable, Ref<MappingTally> tally)
    : map_(std::move(map)),
      data_(data),
      size_(size),
      door_(std::move(door)),
      writable_(writable),
      tally_(std::move(tally)) {
  tally_->mappings.fetch_add(1, std::memory_order_relaxed);
  tally_->bytes.fetch_add(map_.size(), std::memory_order_relaxed);
}

MappedMemory::~MappedMemory() {
  tally_->mappings.fetch_sub(1, std::memory_order_relaxed);
  tally_->bytes.fetch_sub(map_.size(), std::memory_order_relaxed);
}

}  // namespace tw
