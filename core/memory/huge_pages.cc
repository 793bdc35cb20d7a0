// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

namespace tw {

void wish_huge_pages(void* data, size_t size) noexcept {
  if (size < kHugePage) return;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = round_up(begin, page_size());
  const uintptr_t end = (begin + size) & ~(page_size() - 1);
  const int before = errno;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  errno = before;
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
