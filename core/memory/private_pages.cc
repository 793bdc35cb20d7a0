// SPDX-License-Identifier: Apache-2.0
#include "memory/private_pages.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "base/fork.h"
#include "memory/memfd.h"

namespace tw {
namespace {

// From linux/fs.h, which older systems have without these.
struct PageRegion {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};
struct ScanArguments {
  uint64_t size;
  uint64_t flags;
  uint64_t start;
  uint64_t end;
  uint64_t walk_end;
  uint64_t regions;
  uint64_t regions_length;
  uint64_t max_pages;
  uint64_t category_inverted;
  uint64_t category_mask;
  uint64_t category_anyof_mask;
  uint64_t return_mask;
};
static_assert(sizeof(PageRegion) == 24);
static_assert(sizeof(ScanArguments) == 96);
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArguments);
constexpr uint64_t kIsFile = 1 << 2;
constexpr uint64_t kIsPresent = 1 << 3;
constexpr uint64_t kIsSwapped = 1 << 4;

// Bits of an entry of /proc/self/pagemap.
constexpr uint64_t kEntryPresent = uint64_t{1} << 63;
constexpr uint64_t kEntrySwapped = uint64_t{1} << 62;
constexpr uint64_t kEntryFile = uint64_t{1} << 61;

// /proc/self/pagemap, opened once in each process: after a fork the inherited one still shows the
// parent's memory. -1 when it cannot be opened.
int pagemap() {
  static std::atomic<uint64_t> opened{~uint64_t{0}};  // fork epoch and descriptor
  const auto epoch = static_cast<uint32_t>(fork_epoch());
  uint64_t seen = opened.load(std::memory_order_acquire);
  if (static_cast<uint32_t>(seen >> 32) == epoch)
    return static_cast<int>(static_cast<uint32_t>(seen));
  Fd fresh(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const uint64_t mine = uint64_t{epoch} << 32 | static_cast<uint32_t>(fresh.get());
  if (opened.compare_exchange_strong(seen, mine, std::memory_order_acq_rel)) return fresh.release();
  return static_cast<int>(static_cast<uint32_t>(seen));  // another thread was faster
}

// Calls use(first byte, bytes) for each run of private pages until it returns false. False when the
// kernel does not answer.
template <class Use>
bool scan_by_ioctl(const std::byte* begin, size_t size, Use&& use) {
  const int fd = pagemap();
  if (fd < 0) return false;
  std::array<PageRegion, 64> regions;
  const auto end = reinterpret_cast<uint64_t>(begin) + size;
  for (auto at = reinterpret_cast<uint64_t>(begin); at < end;) {
    ScanArguments scan{};
    scan.size = sizeof scan;
    scan.start = at;
    scan.end = end;
    scan.regions = reinterpret_cast<uint64_t>(regions.data());
    scan.regions_length = regions.size();
    // A page of the file that is mapped here is FILE; a private copy is not.
    scan.category_inverted = kIsFile;
    scan.category_mask = kIsFile;
    scan.category_anyof_mask = kIsPresent | kIsSwapped;
    scan.return_mask = kIsPresent | kIsSwapped;
    const int found = ioctl(fd, kPagemapScan, &scan);
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
