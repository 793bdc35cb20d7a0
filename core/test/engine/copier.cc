// SPDX-License-Identifier: Apache-2.0
#include "engine/copier.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "test/sanitized.h"
#include "test/units.h"

namespace tw::test {
namespace {

constexpr std::align_val_t kAligned{64};

struct Freed {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, kAligned); }
};

std::unique_ptr<std::byte[], Freed> bytes(size_t size) {
  return std::unique_ptr<std::byte[], Freed>(
      static_cast<std::byte*>(::operator new[](size, kAligned)));
}

// Every 4 bytes differ from their neighbours, also across pieces.
void fill(std::byte* to, size_t size, uint32_t seed) {
  uint32_t value = seed;
  for (size_t i = 0; i < size; i += 4) {
    value = value * 1664525 + 1013904223;
    std::memcpy(to + i, &value, std::min<size_t>(4, size - i));
  }
}

using Destination = Copier::Destination;

struct Skew {
  size_t to = 0, from = 0;  // beyond alignment
};

// Copies `size` bytes, and looks at them and what is around them.
void check(Copier& copier, size_t size, Skew skew, uint32_t seed,
           Destination destination = Destination::kUsed) {
  const auto from = bytes(size + skew.from);
  const auto to = bytes(size + skew.to + 2);
  std::byte* const at = to.get() + skew.to + 1;
  fill(from.get() + skew.from, size, seed);
  at[-1] = at[size] = std::byte{0x5a};
  copier.copy(at, from.get() + skew.from, size, destination);
  CHECK(std::memcmp(at, from.get() + skew.from, size) == 0);
  CHECK(at[-1] == std::byte{0x5a});
  CHECK(at[size] == std::byte{0x5a});
}

TEST_CASE("copier: every byte arrives, around each size at which it works differently") {
  Copier copier;
  for (const auto destination :
       {Destination::kUsed, Destination::kFresh, Destination::kFreshShared})
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{63}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1,
          4 * kMiB + 512 * 1024, 16 * kMiB - 1, 16 * kMiB, 16 * kMiB + 65})
      for (const Skew skew : {Skew{63, 0}, Skew{63, 1}, Skew{63, 8}, Skew{31, 0}, Skew{0, 7}}) {
        if (kSanitized && skew.to != 63) continue;  // bytes take long there, and races are as many
        CAPTURE(size);
        CAPTURE(skew.to);
        CAPTURE(skew.from);
        check(copier, size, skew, static_cast<uint32_t>(size + skew.from), destination);
      }
}

TEST_CASE("copier: several copies are one, and none of them touches another") {
  Copier copier;
  for (const size_t whole : {4 * kMiB - 1, 5 * kMiB, 17 * kMiB}) {
    if (kSanitized && whole > 5 * kMiB) continue;
    std::vector<size_t> sizes{0, 1, 700 * 1024, 0, 3 * kMiB, 8192};
    sizes.push_back(whole - std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
    const auto from = bytes(whole), to = bytes(whole + sizes.size() + 1);
    fill(from.get(), whole, static_cast<uint32_t>(whole));
    std::memset(to.get(), 0x5a, whole + sizes.size() + 1);
    std::vector<Copier::Copy> copies;
    size_t at = 0;
    for (const size_t size : sizes) {  // with a byte between their destinations
      copies.push_back({to.get() + at + copies.size() + 1, from.get() + at, size});
      at += size;
    }
    CHECK(at == whole);
    copier.copy(copies);
    for (const Copier::Copy& copy : copies) {
      CHECK(copy.to[-1] == std::byte{0x5a});
      CHECK(std::memcmp(copy.to, copy.from, copy.size) == 0);
      CHECK(copy.to[copy.size] == std::byte{0x5a});
    }
  }
}

TEST_CASE("copier: several threads at once, each gets its own bytes") {
  Copier copier;
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < 4; ++i)
    threads.emplace_back([&copier, i] {
      for (uint32_t round = 0; round < 8; ++round)
        check(copier, 4 * kMiB + i * 4096 + round, {63, i}, i * 100 + round);
    });
}

TEST_CASE("copier: it copies alone after stop, which ends once") {
  Copier copier;
  check(copier, 5 * kMiB, {}, 1);
  copier.stop();
  copier.stop();
  check(copier, 5 * kMiB, {}, 2);
}

TEST_CASE("copier: stop without a copy") { Copier().stop(); }

}  // namespace
}  // namespace tw::test
