// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "memory/pagemap.h"

namespace tw {
namespace {

// Negative: the kernel does not tell.
int is_huge(uintptr_t page) {
  PageRegion region{};
  ScanArguments scan{};
  scan.start = page;
  scan.end = page + page_size();
  scan.category_mask = scan.return_mask = kIsHuge;
  return scan_pagemap(scan, {&region, 1});
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
  const size_t step = size / kSamples;
  uintptr_t at = reinterpret_cast<uintptr_t>(data) + step / 2;
  size_t huge = 0;
  for (size_t i = 0; i < kSamples && huge < kSamples; ++i, at += step) {
    const int found = is_huge(at & ~(page_size() - 1));
    if (found < 0)
      huge = kSamples;
    else if (found != 0)
      ++huge;
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
