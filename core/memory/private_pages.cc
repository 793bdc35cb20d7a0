// SPDX-License-Identifier: Apache-2.0
#include "memory/private_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "memory/memfd.h"
#include "memory/pagemap.h"

namespace tw {
namespace {

// Bits of an entry of /proc/self/pagemap.
constexpr uint64_t kEntryPresent = uint64_t{1} << 63;
constexpr uint64_t kEntrySwapped = uint64_t{1} << 62;
constexpr uint64_t kEntryFile = uint64_t{1} << 61;

// Calls use(first byte, bytes) for each run of private pages until it returns false. False when the
// kernel does not answer.
template <class Use>
bool scan_by_ioctl(const std::byte* begin, size_t size, Use&& use) {
  std::array<PageRegion, 64> regions;
  const auto end = reinterpret_cast<uint64_t>(begin) + size;
  for (auto at = reinterpret_cast<uint64_t>(begin); at < end;) {
    ScanArguments scan{};
    scan.start = at;
    scan.end = end;
    // A page of the file that is mapped here is FILE; a private copy is not.
    scan.category_inverted = kIsFile;
    scan.category_mask = kIsFile;
    scan.category_anyof_mask = kIsPresent | kIsSwapped;
    scan.return_mask = kIsPresent | kIsSwapped;
    const int found = scan_pagemap(scan, regions);
    if (found < 0) return false;
    for (int i = 0; i < found; ++i) {
      const PageRegion& region = regions[static_cast<size_t>(i)];
      if (!use(reinterpret_cast<std::byte*>(region.start), region.end - region.start)) return true;
    }
    if (scan.walk_end <= at) return false;
    at = scan.walk_end;
  }
  return true;
}

template <class Use>
bool scan_by_read(const std::byte* begin, size_t size, Use&& use) {
  const int fd = pagemap();
  if (fd < 0) return false;
  std::array<uint64_t, 512> entries;
  const size_t page = page_size();
  const size_t first = reinterpret_cast<uintptr_t>(begin) / page;
  for (size_t done = 0; done < size / page;) {
    const size_t count = std::min(entries.size(), size / page - done);
    const ssize_t got = pread(fd, entries.data(), count * sizeof(uint64_t),
                              static_cast<off_t>((first + done) * sizeof(uint64_t)));
    if (got != static_cast<ssize_t>(count * sizeof(uint64_t))) return false;
    for (size_t i = 0; i < count; ++i) {
      const bool exists = (entries[i] & (kEntryPresent | kEntrySwapped)) != 0;
      if (!exists || (entries[i] & kEntryFile) != 0) continue;
      auto* const address = reinterpret_cast<std::byte*>((first + done + i) * page);
      if (!use(address, page)) return true;
    }
    done += count;
  }
  return true;
}

template <class Use>
bool scan_pages(const std::byte* begin, size_t size, PageScan how, Use&& use) {
  if (how == PageScan::kIoctl && scan_by_ioctl(begin, size, use)) return true;
  return how != PageScan::kNone && scan_by_read(begin, size, use);
}

uint64_t counted_faults() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_minflt) + static_cast<uint64_t>(usage.ru_majflt);
}

// Sandboxes that stand in for the kernel may answer and not count.
bool faults_are_counted() {
  auto map = MemoryMap::map_lazily(-1, page_size(), MAP_PRIVATE | MAP_ANONYMOUS);
  if (!map) return false;
  const uint64_t before = counted_faults();
  *static_cast<volatile std::byte*>(map->data()) = std::byte{1};
  return before != 0 && counted_faults() > before;
}

}  // namespace

uint64_t page_faults() {
  static const bool counted = faults_are_counted();
  return counted ? counted_faults() : 0;
}

bool has_private_pages(const std::byte* begin, size_t size, PageScan how) {
  bool found = false;
  const auto stop = [&found](std::byte*, size_t) {
    found = true;
    return false;
  };
  return !scan_pages(begin, size, how, stop) || found;
}

void drop_private_pages(std::byte* begin, size_t size, PageScan how) {
  const auto drop = [](std::byte* page, size_t bytes) {
    madvise(page, bytes, MADV_DONTNEED);
    return true;
  };
  if (!scan_pages(begin, size, how, drop)) madvise(begin, size, MADV_DONTNEED);
}

bool page_scan_ioctl_works() {
  const auto* page = reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(&kEntryFile) &
                                                        ~(static_cast<uintptr_t>(page_size()) - 1));
  return scan_by_ioctl(page, page_size(), [](std::byte*, size_t) { return true; });
}

}  // namespace tw
