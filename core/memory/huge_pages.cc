// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_pages.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "base/fd.h"
#include "memory/pagemap.h"

namespace tw {
namespace {

// From linux/mman.h of newer kernels than the headers may be.
constexpr int kCollapse = 25;

// What is made by a fault, and what by MADV_COLLAPSE.
HugePagePrice private_pages_price, shared_pages_price;

// Not what others took of the CPU in between.
Nanos own_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

bool names_cpus(const char* path) {
  const Fd file(open(path, O_RDONLY | O_CLOEXEC));
  char first = 0;
  return file && read(file.get(), &first, 1) == 1 && std::isdigit(first) != 0;
}

// MADV_COLLAPSE waits for a worker of the kernel on every CPU that has pages to account for. It may
// never run where a CPU belongs to a program alone, and hardly ever where threads run at realtime
// priority, as this one's neighbours do if it does itself.
bool kernel_workers_run() {
  static const bool isolated = names_cpus("/sys/devices/system/cpu/isolated") ||
                               names_cpus("/sys/devices/system/cpu/nohz_full");
  if (isolated) return false;
  const int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  return policy != SCHED_FIFO && policy != SCHED_RR;
}

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

bool HugePagePrice::worth(size_t pages) noexcept {
  if (left_.load(std::memory_order_relaxed) <= 0) return true;
  left_.fetch_sub(static_cast<int64_t>(pages), std::memory_order_relaxed);
  return false;
}

bool HugePagePrice::paid(Nanos took) noexcept {
  const bool dear = took > kDear;
  uint32_t pause = 0;
  if (dear) {
    const uint32_t before = pause_.load(std::memory_order_relaxed);
    pause = std::clamp(2 * before, kFirstPause, kLongestPause);
    left_.store(pause, std::memory_order_relaxed);
  }
  pause_.store(pause, std::memory_order_relaxed);
  return !dear;
}

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
  return map->cut(size);
}

void settle_pages(const MemoryMap& map, size_t used) noexcept {
  const auto begin = reinterpret_cast<uintptr_t>(map.data());
  const uintptr_t next = round_up(begin + used, kHugePage), end = begin + map.size();
  const int before = errno;
  bool cheap = private_pages_price.worth(std::max<size_t>((end - begin - used) / kHugePage, 1));
  if (cheap && madvise(map.data(), map.size(), MADV_HUGEPAGE) == 0 && next + kHugePage <= end) {
    const Nanos begun = own_time();
    *reinterpret_cast<volatile std::byte*>(next) = std::byte{};
    cheap = private_pages_price.paid(own_time() - begun);
  }
  if (!cheap) madvise(map.data(), map.size(), MADV_NOHUGEPAGE);
  errno = before;
}

void make_shared_huge_page(std::byte* page) noexcept {
  const int before = errno;
  if (kernel_workers_run() && shared_pages_price.worth(1)) {
    const Nanos begun = now();
    const bool made = madvise(page, kHugePage, kCollapse) == 0;
    shared_pages_price.paid(made ? now() - begun : kForever);
  }
  errno = before;
}

}  // namespace tw
