// SPDX-License-Identifier: Apache-2.0
// Waits for changes of several memories, which no link has a part in.
#include "access/nudges.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <thread>

#include "test/base/forbidden.h"
#include "test/engine/patience.h"

namespace tw {
namespace {

struct Memories {
  explicit Memories(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      all.push_back(home.make(8).value());
      words.push_back({all.back().get(), 0, 1, 0});
    }
  }
  std::atomic_ref<uint64_t> value(size_t which) {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(all[which]->data()));
  }
  void raise(size_t which) {
    value(which).store(1, std::memory_order_release);
    tell(all[which]->words());
  }
  void await_sleeper() {
    while (all.front()->words().sleepers.load() == 0) std::this_thread::yield();
  }
  Waited wait() { return wait_any(words, 0, test::patience()); }

  SharedMemories home{1 << 20};
  std::vector<Ref<SharedMemory>> all;
  std::vector<AwaitedWord> words;
};

// Has the kernel say to this thread that it has no futex_waitv(2), unless it has none anyway.
void forbid_futex_waitv() { test::forbid(449, ENOSYS); }

TEST_CASE("told: a change of one of several memories ends a wait for all of them") {
  for (const size_t count : {1u, 3u, 130u}) {  // more than the kernel waits for at once
    for (const size_t which : {size_t{0}, count - 1}) {
      Memories memories(count);
      std::thread waits([&] { CHECK(memories.wait() == Waited::kDone); });
      memories.await_sleeper();
      memories.raise(which);
      waits.join();
      CHECK(memories.all.front()->words().sleepers.load() == 0);
      CHECK(memories.wait() == Waited::kDone);  // it is still so
    }
  }
}

TEST_CASE("told: where the kernel waits for one word only, the others are looked at") {
  Memories memories(3);
  std::thread waits([&] {
    forbid_futex_waitv();
    CHECK(memories.wait() == Waited::kDone);
  });
  memories.await_sleeper();
  memories.raise(2);
  waits.join();
}

TEST_CASE("told: what a device has stored is found, although it tells nobody") {
  Memories memories(2);
  memories.all[1]->devices.store(1);
  std::thread waits([&] { CHECK(memories.wait() == Waited::kDone); });
  memories.await_sleeper();
  memories.value(1).store(1, std::memory_order_release);
  waits.join();
}

TEST_CASE("told: a nudge ends a wait, once, and so does the deadline") {
  Memories memories(3);
  std::thread waits([&] { CHECK(memories.wait() == Waited::kDone); });
  memories.await_sleeper();
  CHECK(nudges_of(*memories.all[1]) == 0);
  nudge(*memories.all[1]);
  CHECK(nudges_of(*memories.all[1]) == 1);
  waits.join();
  CHECK(memories.wait() == Waited::kDone);  // whoever has not seen it yet
  memories.words[1].nudges = nudges_of(*memories.all[1]);
  CHECK(wait_any(memories.words, 0, now() + kMillisecond) == Waited::kTimeout);
}

TEST_CASE("told: a word lies inside of its memory, at a multiple of its size") {
  Memories memories(1);
  const auto code = [&](uint64_t offset) {
    return check({memories.all[0].get(), offset, 1, 0}).code();
  };
  CHECK(code(0) == Code::kOk);
  CHECK(code(4) == Code::kInvalidArgument);
  CHECK(code(8) == Code::kOutOfRange);
  CHECK(code(UINT64_MAX - 7) == Code::kOutOfRange);
}

}  // namespace
}  // namespace tw
