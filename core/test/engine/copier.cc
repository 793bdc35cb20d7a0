#include "engine/copier.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace tw::test {
namespace {

constexpr size_t kMi = 1 << 20;
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

// Copies `size` bytes from an address `skew` beyond alignment, and looks at the bytes and beyond.
void check(Copier& copier, size_t size, size_t skew, uint32_t seed) {
  const auto from = bytes(size + skew);
  const auto to = bytes(size + 1);
  fill(from.get() + skew, size, seed);
  to[size] = std::byte{0x5a};
  copier.copy(to.get(), from.get() + skew, size);
  CHECK(std::memcmp(to.get(), from.get() + skew, size) == 0);
  CHECK(to[size] == std::byte{0x5a});
}

TEST_CASE("copier: every byte arrives, around each size at which it works differently") {
  Copier copier;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, 4 * kMi - 1, 4 * kMi, 4 * kMi + 1,
                            4 * kMi + 512 * 1024, 16 * kMi - 1, 16 * kMi, 16 * kMi + 65})
    for (const size_t skew : {0, 1, 8}) {
      CAPTURE(size);
      CAPTURE(skew);
      check(copier, size, skew, static_cast<uint32_t>(size + skew));
    }
}

TEST_CASE("copier: several threads at once, each gets its own bytes") {
  Copier copier;
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < 4; ++i)
    threads.emplace_back([&copier, i] {
      for (uint32_t round = 0; round < 8; ++round)
        check(copier, 4 * kMi + i * 4096 + round, i, i * 100 + round);
    });
}

TEST_CASE("copier: it copies alone after stop, which ends once") {
  Copier copier;
  check(copier, 5 * kMi, 0, 1);
  copier.stop();
  copier.stop();
  check(copier, 5 * kMi, 0, 2);
}

TEST_CASE("copier: stop without a copy") { Copier().stop(); }

}  // namespace
}  // namespace tw::test
