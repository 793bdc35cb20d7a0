// SPDX-License-Identifier: Apache-2.0
// Huge pages for memory that is about to be filled: 64 MiB of fresh memory in small pages take 26
// ms to copy to and 4 ms to give back, in huge ones 7 and 0.4 ms. But a hypervisor may take back
// what its guest does not use, in whole huge pages, and then each takes 4 to 10 ms until it is
// there again: several times as long as small pages for as much memory, which the guest has kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "memory/memfd.h"

namespace tw {

// Whether huge pages are worth their price, which is learned from those that are made. Thread-safe.
class HugePagePrice {
 public:
  // More than clearing one takes on any host, and about what its memory costs in small pages.
  static constexpr Nanos kDear = 2 * kMillisecond;
  // So many go in small pages after the first that was dear, and twice as many each further time,
  // up to a gibibyte.
  static constexpr uint32_t kFirstPause = 8, kLongestPause = 512;

  // Of `pages` that are about to be filled. True: the first of them is made, and paid() is told
  // what that took.
  bool worth(size_t pages) noexcept;
  // Whether the others are worth it, too.
  bool paid(Nanos took) noexcept;

 private:
  std::atomic<uint32_t> pause_{0};  // how many go in small pages when the next one is dear
  std::atomic<int64_t> left_{0};    // of those of the last pause
};

// Asks for huge pages in [data, data + size); memory around it that lies in the same pages is not
// concerned. A wish: without them everything works, slower.
void wish_huge_pages(void* data, size_t size) noexcept;

// Whether most of [data, data + size) lies in huge pages, as far as samples show; where the kernel
// does not tell (before Linux 6.7): yes.
bool in_huge_pages(const void* data, size_t size) noexcept;

// Fresh anonymous memory of `size` bytes, whole pages, that begins with a huge page. Which pages it
// gets is settled by settle_pages(). RESOURCE_EXHAUSTED.
Result<MemoryMap> map_huge_pages(size_t size);

// Asks for huge pages in `map`, private memory that is touched up to `used` and about to be filled
// from there, if they are worth their price, and else for small ones. The next huge page is made
// to find out.
void settle_pages(const MemoryMap& map, size_t used) noexcept;

// Makes the huge page of a memory file that begins at `page`, a multiple of kHugePage that nobody
// has touched, in a shared mapping, if that is worth its price. Without it everything works,
// slower.
void make_shared_huge_page(std::byte* page) noexcept;

}  // namespace tw
