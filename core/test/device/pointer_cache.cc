// SPDX-License-Identifier: Apache-2.0
#include "device/pointer_cache.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "test/device/fake_driver.h"

namespace tw::test {
namespace {

using device::PointerCache;
using device::Space;

constexpr size_t kBytes = 1 << 20;

TEST_CASE("the pointer cache asks the driver once for each allocation") {
  FakeHost host;
  FakeDriver driver(host, 2);
  PointerCache cache(driver);
  std::byte* const first = driver.allocate(0, kBytes);
  std::byte* const second = driver.allocate(1, kBytes);
  for (size_t at = 0; at < kBytes; at += kBytes / 64) {
    const auto found = cache.find(first + at);
    REQUIRE(found);
    CHECK(found->space == Space::kDevice);
    CHECK(found->device == 0);
    CHECK(found->base == first);
    CHECK(found->size == kBytes);
    CHECK(cache.find(second + at)->device == 1);
  }
  CHECK(driver.calls("allocation_of") == 2);
}

TEST_CASE("the pointer cache asks anew about memory that was freed") {
  FakeHost host;
  FakeDriver driver(host, 2);
  PointerCache cache(driver);
  std::byte* const before = driver.allocate(0, kBytes);
  CHECK(cache.find(before)->device == 0);
  cache.forget(before, kBytes);
  driver.free(before);
  std::byte* const after = driver.allocate(1, kBytes / 2);
  std::byte* const same = driver.allocate(1, kBytes);
  REQUIRE(same == before);
  CHECK(cache.find(same + 5)->device == 1);
  CHECK(cache.find(after)->size == kBytes / 2);
  CHECK(driver.calls("allocation_of") == 3);
  // A part is enough: allocators tell of what they unmap, which may be less or more.
  cache.forget(same + kBytes / 2, 1);
  CHECK(cache.find(same)->device == 1);
  CHECK(driver.calls("allocation_of") == 4);
}

TEST_CASE("the pointer cache does not keep what it cannot hear of") {
  FakeHost host;
  FakeDriver driver(host, 1);
  PointerCache cache(driver);
  int local = 0;
  for (int i = 0; i < 2; ++i) {
    const auto found = cache.find(&local);
    REQUIRE(found);
    CHECK(found->space == Space::kHost);
  }
  CHECK(driver.calls("allocation_of") == 2);
  driver.fail("allocation_of", {Code::kInternal, "no"});
  CHECK(cache.find(&local).status().code() == Code::kInternal);
}

TEST_CASE("the pointer cache is right while others free and ask") {
  FakeHost host;
  FakeDriver driver(host, 2, 0);
  PointerCache cache(driver);
  std::byte* const steady = driver.allocate(0, kBytes);
  std::atomic<bool> over{false};
  std::thread asking([&] {
    while (!over) CHECK(cache.find(steady)->device == 0);
  });
  for (int i = 0; i < 2000; ++i) {
    const int device = i % 2;
    std::byte* const mine = driver.allocate(device, kBytes / 4);
    CHECK(cache.find(mine + 1)->device == device);
    cache.forget(mine, kBytes / 4);
    driver.free(mine);
  }
  over = true;
  asking.join();
}

}  // namespace
}  // namespace tw::test
