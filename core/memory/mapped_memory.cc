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
Result<MemoryMap> map_for_us(const Fd& file, size_t size, int protection) {
  auto map = MemoryMap::map(file.get(), size, protection, MAP_SHARED);
  if (map) (void)madvise(map->data(), size, MADV_DONTFORK);
  return map;
}

}  // namespace

Result<Ref<Door>> Door::make() {
  auto file = make_memfd("tensorwire-door", page_size());
  if (!file) return file.status();
  if (Status status = seal_memfd(file->get(), kSharedSeals); !status.ok()) return status;
  auto map = MemoryMap::map(file->get(), page_size(), PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!map) return map.status();
  new (map->data()) DoorWords;
  return Ref<Door>::adopt(new Door(std::move(*file), std::move(*map)));
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
  if (Status status = check_memfd(door.get(), page_size(), kSharedSeals, O_RDWR); !status.ok())
    return status;
  const bool writable = access == O_RDWR;
  auto map = map_for_us(file, file_size, writable ? PROT_READ | PROT_WRITE : PROT_READ);
  if (!map) return map.status();
  wish_huge_pages(map->data(), map->size());
  auto threshold = map_for_us(door, page_size(), PROT_READ | PROT_WRITE);
  if (!threshold) return threshold.status();
  return Ref<MappedMemory>::adopt(
      new MappedMemory(std::move(*map), std::move(*threshold), writable, std::move(tally)));
}

MappedMemory::MappedMemory(MemoryMap map, MemoryMap door, bool writable, Ref<MappingTally> tally)
    : map_(std::move(map)), door_(std::move(door)), writable_(writable), tally_(std::move(tally)) {
  tally_->mappings.fetch_add(1, std::memory_order_relaxed);
  tally_->bytes.fetch_add(map_.size(), std::memory_order_relaxed);
}

MappedMemory::~MappedMemory() {
  tally_->mappings.fetch_sub(1, std::memory_order_relaxed);
  tally_->bytes.fetch_sub(map_.size(), std::memory_order_relaxed);
}

}  // namespace tw
