// SPDX-License-Identifier: Apache-2.0
// What the kernel tells of this process's pages: /proc/self/pagemap, and PAGEMAP_SCAN on it, which
// Linux has from 6.7 on.
#pragma once

#include <cstdint>
#include <span>

namespace tw {

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
inline constexpr uint64_t kIsFile = 1 << 2;
inline constexpr uint64_t kIsPresent = 1 << 3;
inline constexpr uint64_t kIsSwapped = 1 << 4;
inline constexpr uint64_t kIsHuge = 1 << 6;

// The file, opened once in each process: after a fork the inherited one still shows the parent's
// memory. -1 when it cannot be opened.
int pagemap();

// How many regions were found, and put into `regions`; negative: the kernel does not answer.
int scan_pagemap(ScanArguments& scan, std::span<PageRegion> regions);

}  // namespace tw
