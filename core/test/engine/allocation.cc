// SPDX-License-Identifier: Apache-2.0
#include "engine/allocation.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "test/engine/patience.h"
#include "test/units.h"

namespace tw::test {
namespace {

constexpr size_t kRoom = 16 * kMiB;

// Counts how often it is asked.
struct Asked {
  Wait wait(int answer) {
    interrupted = answer;
    return {patience(), ask, this};
  }
  static int ask(void* self) {
    auto& me = *static_cast<Asked*>(self);
    ++me.times;
    return me.interrupted;
  }
  std::atomic<int> times{0};
  int interrupted = 0;
};

TEST_CASE("allocation: what fits is there without a wait") {
  const auto arena = make_ref<Arena>(kRoom, kRoom);
  const auto quota = make_ref<Quota>(kMiB);
  const auto block = allocate(*arena, kMiB, quota, {0, nullptr, nullptr});
  REQUIRE(block.ok());
  REQUIRE(*block);
  CHECK((*block)->size() == kMiB);
  CHECK((*block)->quota() == quota.get());
}

TEST_CASE("allocation: a full arena is waited for until there is room, time, or an interruption") {
  const auto arena = make_ref<Arena>(kRoom, kRoom);
  auto all = arena->allocate(kRoom);
  REQUIRE(all.ok());
  Asked asked;
  SUBCASE("room") {
    std::thread frees([&] {
      // The wait is under way, and goes on after a look whether it is interrupted.
      CHECK(eventually([&] { return asked.times != 0; }));
      *all = nullptr;
    });
    const auto block = allocate(*arena, kMiB, {}, asked.wait(0));
    frees.join();
    REQUIRE(block.ok());
    CHECK(*block);
  }
  SUBCASE("time") {
    const auto block = allocate(*arena, kMiB, {}, {now() + kMillisecond, nullptr, nullptr});
    REQUIRE_FALSE(block.ok());
    CHECK(block.status().code() == Code::kResourceExhausted);
  }
  SUBCASE("an interruption") {
    const auto block = allocate(*arena, kMiB, {}, asked.wait(1));
    REQUIRE(block.ok());
    CHECK_FALSE(*block);
    CHECK(asked.times == 1);
  }
}

TEST_CASE("allocation: what can never fit is refused at once, however long one would wait") {
  const auto arena = make_ref<Arena>(kRoom, kRoom);
  Asked asked;
  const auto block = allocate(*arena, kRoom + 1, {}, asked.wait(1));
  REQUIRE_FALSE(block.ok());
  CHECK(block.status().code() == Code::kResourceExhausted);
  CHECK(asked.times == 0);
}

TEST_CASE("allocation: an end of all waits is one, too") {
  const auto arena = make_ref<Arena>(kRoom, kRoom);
  const auto all = arena->allocate(kRoom);
  REQUIRE(all.ok());
  Asked asked;
  std::atomic<bool> over{false};
  std::thread ends([&] {
    CHECK(eventually([&] {
      arena->interrupt();
      return over.load();
    }));
  });
  const auto block = allocate(*arena, kMiB, {}, asked.wait(0));
  over = true;
  ends.join();
  REQUIRE_FALSE(block.ok());
  CHECK(block.status().code() == Code::kCancelled);
}

}  // namespace
}  // namespace tw::test
