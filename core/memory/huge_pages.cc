// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "base/fd.h"

namespace tw {
namespace {

// Of ioctl(2) on /proc/PID/pagemap, which older headers of the kernel do not have.
struct ScannedPages {
  uint64_t begin, end, categories;
};
struct PageScan {
  uint64_t size, flags, begin, end, end_of_walk;
  uint64_t found, room, most_pages;
  uint64_t inverted, all_of, any_of, told;
};
constexpr uint64_t kIsHuge = 1 << 6;
constexpr unsigned long kScanPages = _IOWR('f', 16, PageScan);
static_assert(sizeof(PageScan) == 96);

// Negative: the kernel does not tell.
int is_huge(const Fd& pagemap, uintptr_t page) {
  ScannedPages found{};
  PageScan scan{};
  scan.size = sizeof scan;
  scan.begin = page;
  scan.end = page + page_size();
  scan.found = reinterpret_cast<uintptr_t>(&found);
  scan.room = 1;
  scan.all_of = scan.told = kIsHuge;
  return ::ioctl(pagemap.get(), kScanPages, &scan);
}

}  // namespace

void wish_huge_pages(void* data, size_t size) noexcept {
  if (size < kHugePage) return;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = round_up(begin, page_size());
  const uintptr_t end = (begin + size) & ~(page_size() - 1);
  const int before = errno;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  errno = before;
}

bool in_huge_pages(const void* data, size_t size) noexcept {
  constexpr size_t kSamples = 9;
  const int before = errno;
  const Fd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const size_t step = size / kSamples;
  uintptr_t at = reinterpret_cast<uintptr_t>(data) + step / 2;
  size_t huge = 0;
  for (size_t i = 0; i < kSamples; ++i, at += step) {
    const int found = is_huge(pagemap, at & ~(page_size() - 1));
    if (found != 0) ++huge;
    if (found < 0) huge = kSamples;
  }
  errno = before;
  return 2 * huge > kSamples;
}

Result<MemoryMap> map_huge_pages(size_t size) {
  auto map =
      MemoryMap::map(-1, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  if (!map) return map;
  const auto begin = reinterpret_cast<uintptr_t>(map->data());
  if (const size_t before = round_up(begin, kHugePage) - begin; before != 0) map->cut(before);
  MemoryMap huge = map->cut(size);
  wish_huge_pages(huge.data(), huge.size());
  return huge;
}

}  // namespace tw
