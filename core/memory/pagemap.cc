// SPDX-License-Identifier: Apache-2.0
#include "memory/pagemap.h"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>

#include <atomic>

#include "base/fd.h"
#include "base/fork.h"

namespace tw {
namespace {

constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArguments);

}  // namespace

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

int scan_pagemap(ScanArguments& scan, std::span<PageRegion> regions) {
  const int fd = pagemap();
  if (fd < 0) return -1;
  scan.size = sizeof scan;
  scan.regions = reinterpret_cast<uint64_t>(regions.data());
  scan.regions_length = regions.size();
  return ioctl(fd, kPagemapScan, &scan);
}

}  // namespace tw
