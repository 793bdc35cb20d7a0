// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_pages.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "memory/memfd.h"
#include "memory/slab.h"
#include "test/not_tried.h"

namespace tw {
namespace {

MemoryMap anonymous(size_t size) {
  auto map = MemoryMap::map(-1, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  REQUIRE(map.ok());
  return std::move(*map);
}

// Whether the kernel has been asked for huge pages at this address.
bool wished(const std::byte* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(file, line)) {
    size_t dash = 0;
    if (line.find("VmFlags:") == 0) {
      if (here) return line.find(" hg") != std::string::npos;
    } else if (line.find('-') < line.find(' ')) {
      const uintptr_t begin = std::stoull(line, &dash, 16);
      here = at >= begin && at < std::stoull(line.substr(dash + 1), nullptr, 16);
    }
  }
  return false;
}

bool kernel_has_huge_pages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
}

TEST_CASE("huge pages: they are wished for in the range, and nowhere else") {
  if (!kernel_has_huge_pages()) return test::not_tried("this kernel has no transparent huge pages");
  const MemoryMap map = anonymous(3 * kHugePage);
  std::byte* const begin = map.data() + page_size() + 48;
  wish_huge_pages(begin, kHugePage - 1);
  CHECK_FALSE(wished(begin + page_size()));
  wish_huge_pages(begin, kHugePage);
  CHECK(wished(begin + page_size()));
  CHECK(wished(begin + kHugePage - page_size()));
  CHECK_FALSE(wished(begin));
  CHECK_FALSE(wished(begin + kHugePage));
}

TEST_CASE("huge pages: fresh memory begins with one, and moves as whole ones") {
  auto small = map_huge_pages(kHugePage);
  auto large = map_huge_pages(2 * kHugePage + page_size());
  REQUIRE(small.ok());
  REQUIRE(large.ok());
  for (const MemoryMap* map : {&*small, &*large})
    CHECK(reinterpret_cast<uintptr_t>(map->data()) % kHugePage == 0);
  std::memset(small->data(), 7, kHugePage);
  std::byte* const place = large->data();
  const size_t size = large->size();
  REQUIRE(small->move_to(std::move(*large)).ok());
  CHECK(small->data() == place);
  CHECK(small->size() == size);
  CHECK(place[kHugePage - 1] == std::byte{7});
  CHECK(place[size - 1] == std::byte{0});
}

TEST_CASE("huge pages: a mapping is cut into mappings of their own") {
  MemoryMap rest = anonymous(3 * page_size());
  std::byte* const begin = rest.data();
  {
    const MemoryMap front = rest.cut(page_size());
    CHECK(front.data() == begin);
    CHECK(front.size() == page_size());
  }
  CHECK(rest.data() == begin + page_size());
  rest.data()[0] = std::byte{1};
  const MemoryMap all = rest.cut(2 * page_size());
  CHECK(rest.data() == nullptr);
  CHECK(all.data()[0] == std::byte{1});
}

TEST_CASE("huge pages: slabs wish for them") {
  if (!kernel_has_huge_pages()) return test::not_tried("this kernel has no transparent huge pages");
  const auto slab = Slab::make(0, 1, 2 * kHugePage);
  REQUIRE(slab.ok());
  CHECK(wished((*slab)->base()));
}

// How much of a mapping that begins here lies in huge pages.
size_t huge_bytes(const std::byte* begin) {
  std::ostringstream name;
  name << std::hex << reinterpret_cast<uintptr_t>(begin) << '-';
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(file, line)) {
    if (line.find('-') < line.find(' ')) here = line.find(name.str()) == 0;
    if (here && line.find("AnonHugePages:") == 0) return std::stoul(line.substr(14)) * 1024;
  }
  return 0;
}

TEST_CASE("huge pages: whether memory lies in them is known where the kernel tells") {
  MemoryMap small = anonymous(4 * kHugePage);
  REQUIRE(::madvise(small.data(), small.size(), MADV_NOHUGEPAGE) == 0);
  std::memset(small.data(), 1, small.size());
  errno = EDOM;
  if (in_huge_pages(small.data() + 8, small.size() - 8))
    return test::not_tried("this kernel does not tell which pages are huge");
  auto large = map_huge_pages(4 * kHugePage);
  REQUIRE(large.ok());
  wish_huge_pages(large->data(), large->size());
  CHECK_FALSE(in_huge_pages(large->data(), large->size()));  // nothing is there yet
  std::memset(large->data(), 1, large->size());
  // Samples are looked at: where there are such pages and others, either answer may come.
  const size_t huge = huge_bytes(large->data());
  if (huge == 0 || huge == large->size())
    CHECK(in_huge_pages(large->data(), large->size()) == (huge != 0));
  CHECK_FALSE(in_huge_pages(nullptr, 0));
  CHECK(errno == EDOM);
}

TEST_CASE("huge pages: what was dear is left for a while, and for longer each time") {
  HugePagePrice price;
  CHECK(price.worth(1));
  CHECK(price.paid(HugePagePrice::kDear));
  CHECK(price.worth(1000));
  const auto pause = [&] {
    uint32_t pages = 0;
    while (!price.worth(1)) ++pages;
    return pages;
  };
  for (uint32_t expected = HugePagePrice::kFirstPause; expected <= HugePagePrice::kLongestPause;
       expected *= 2) {
    CHECK_FALSE(price.paid(HugePagePrice::kDear + 1));
    CHECK(pause() == expected);
  }
  price.paid(kForever);
  CHECK(pause() == HugePagePrice::kLongestPause);
  price.paid(kForever);
  CHECK_FALSE(price.worth(HugePagePrice::kLongestPause));  // all of them at once
  CHECK(price.worth(1));
  price.paid(0);
  price.paid(kForever);
  CHECK(pause() == HugePagePrice::kFirstPause);
}

TEST_CASE("huge pages: settled, fresh memory is as it was, and is filled from its middle on") {
  auto map = map_huge_pages(4 * kHugePage);
  REQUIRE(map.ok());
  const size_t used = kHugePage + 1;
  std::memset(map->data(), 7, used);
  errno = EDOM;
  settle_pages(*map, used);
  CHECK(errno == EDOM);
  CHECK(map->data()[used - 1] == std::byte{7});
  CHECK(map->data()[used] == std::byte{0});
  CHECK(map->data()[2 * kHugePage] == std::byte{0});
  settle_pages(*map, map->size());
  settle_pages(*map, map->size() - 1);
  CHECK(map->data()[map->size() - 1] == std::byte{0});
}

TEST_CASE("huge pages: those of a memory file are made where they are whole, or nothing happens") {
  const auto slab = Slab::make(0, 1, 2 * kHugePage);
  REQUIRE(slab.ok());
  std::byte* const base = (*slab)->base();
  CHECK(reinterpret_cast<uintptr_t>(base) % kHugePage == 0);
  errno = EDOM;
  make_shared_huge_page(base);
  CHECK(errno == EDOM);
  std::memset(base, 7, kHugePage);
  make_shared_huge_page(base);  // one that is there already
  CHECK(base[0] == std::byte{7});
  CHECK(base[kHugePage - 1] == std::byte{7});
  CHECK(base[kHugePage] == std::byte{0});
  const MemoryMap gone = anonymous(kHugePage);
  make_shared_huge_page(const_cast<std::byte*>(gone.data()) + 8);
  CHECK(errno == EDOM);
}

TEST_CASE("huge pages: where there are none to be had nothing happens") {
  std::byte* gone;
  {
    const MemoryMap map = anonymous(2 * kHugePage);
    gone = map.data();
  }
  errno = EDOM;
  wish_huge_pages(gone, 2 * kHugePage);
  wish_huge_pages(nullptr, 0);
  CHECK(errno == EDOM);
}

}  // namespace
}  // namespace tw
