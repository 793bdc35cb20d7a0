// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "memory/memfd.h"

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

}  // namespace tw
