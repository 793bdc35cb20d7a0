// SPDX-License-Identifier: Apache-2.0
#include "base/ref.h"

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace tw {
namespace {

struct Counted : RefCounted {
  explicit Counted(std::atomic<int>& gone) : gone_(gone) {}
  ~Counted() override {
    alive_ = false;
    ++gone_;
  }
  std::atomic<bool> alive_{true};
  std::atomic<int>& gone_;
};

// In a table while it is there, as its last reference takes it out.
struct Entry final : Listed<Counted> {
  struct Table {
    std::mutex mutex;
    Entry* entry = nullptr;
    std::atomic<int> gone{0};
    Ref<Entry> find() {
      const std::lock_guard lock(mutex);
      return entry && entry->try_retain() ? Ref<Entry>::adopt(entry) : nullptr;
    }
  };
  explicit Entry(Table& table) : Listed<Counted>(table.gone), table_(table) {
    const std::lock_guard lock(table.mutex);
    table.entry = this;
  }
  void dispose() noexcept override {
    {
      const std::lock_guard lock(table_.mutex);
      if (table_.entry == this) table_.entry = nullptr;  // there may be another one already
    }
    delete this;
  }
  Table& table_;
};

TEST_CASE("ref: an object goes with its last reference, in whatever order they go") {
  std::atomic<int> gone{0};
  auto one = make_ref<Counted>(gone);
  Ref<Counted> other = one;
  one = nullptr;
  CHECK(gone == 0);
  Hold third = other;
  other = nullptr;
  CHECK(gone == 0);
  third = nullptr;
  CHECK(gone == 1);
}

TEST_CASE("ref: threads that let go at the same time end an object once") {
  std::atomic<int> gone{0};
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    auto object = make_ref<Counted>(gone);
    std::thread other([mine = object]() mutable { mine = nullptr; });
    object = nullptr;
    other.join();
  }
  CHECK(gone == kRounds);
}

TEST_CASE("ref: what is found in a table is there, however its other references go") {
  Entry::Table table;
  std::atomic<bool> over{false};
  std::atomic<int> found{0}, wrong{0};
  std::thread finder([&] {
    while (!over) {
      const Ref<Entry> entry = table.find();
      if (!entry) continue;
      ++found;
      wrong += !entry->alive_;
    }
  });
  int rounds = 0;
  for (; rounds < 20'000 || found == 0; ++rounds) {
    REQUIRE(rounds < 10'000'000);
    auto entry = make_ref<Entry>(table);
    const Ref<Entry> second = table.find();
    REQUIRE(second.get() == entry.get());
    entry = nullptr;
  }
  over = true;
  finder.join();
  CHECK_FALSE(table.find());
  CHECK(table.gone == rounds);
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace tw
