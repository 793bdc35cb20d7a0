// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "test/not_tried.h"
#include "test/shortage.h"
#include "test/units.h"

namespace tw {
namespace {

using test::kKiB;
using test::kMiB;

Ref<Block> must(Result<Ref<Block>> block) {
  REQUIRE(block.ok());
  return std::move(block).value();
}

bool aligned(const Block& block, size_t to) {
  return reinterpret_cast<uintptr_t>(block.data()) % to == 0;
}

TEST_CASE("arena: sizes, alignment and names of blocks") {
  auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  for (size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{4032}}) {
    CAPTURE(size);
    auto block = must(arena->allocate(size));
    CHECK(block->size() == size);
    CHECK(block->capacity() >= size);
    CHECK(aligned(*block, 64));
    CHECK_FALSE(block->leasable());
  }
  for (size_t size : {size_t{4033}, size_t{4096}, size_t{4097}, 3 * kMiB, 9 * kMiB}) {
    CAPTURE(size);
    auto block = must(arena->allocate(size));
    CHECK(block->size() == size);
    CHECK(aligned(*block, page_size()));
    CHECK(block->capacity() == round_up(size, page_size()));
    CHECK(block->leasable());
    const RegionRef whole = block->region();
    CHECK(whole.length == size);
    CHECK(block->slab().base() + whole.offset == block->data());
    CHECK(whole.slab == block->slab().index());
    CHECK(whole.generation == block->slab().generation());
    CHECK(block->region(block->data() + 10, 7) ==
          RegionRef{whole.slab, whole.generation, whole.offset + 10, 7});
    std::memset(block->data(), 0x5a, size);
  }
}

TEST_CASE("arena: readers that hoard leave each other shares, and some for what is born there") {
  auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  std::vector<Ref<Block>> blocks;
  // What one peer gets that never lets go.
  const auto hoard = [&] {
    size_t held = 0;
    for (;;) {
      auto block = arena->allocate(64 * kKiB);
      if (!block || !(*block)->lendable(held)) return held;
      (*block)->lent();
      held += (*block)->size();
      blocks.push_back(std::move(*block));
    }
  };
  CHECK(hoard() == 32 * kMiB);
  CHECK(hoard() == 16 * kMiB);
  CHECK(hoard() == 8 * kMiB);
  for (int i = 0; i < 10; ++i) (void)hoard();
  CHECK(arena->stats().leased <= 56 * kMiB);
  CHECK_FALSE(arena->spares(64 * kKiB, 0));
  CHECK(arena->stats().wanted == 0);
  CHECK(arena->take_wanted() == 0);
  CHECK(arena->crowded(1, 0).details().find(
            "TENSORWIRE_BUFFER_BYTES is 64M, and 128M would have been enough") !=
        std::string::npos);
  CHECK(arena->take_wanted() == 128 * kMiB);
  // What a peer may hold is what all leave free: 60 MiB beside what is on lease and 30 MiB to be.
  const Status more = blocks[0]->crowded(60 * kMiB, 30 * kMiB);
  CHECK(more.details().find("and 256M would have been enough") != std::string::npos);
  CHECK(arena->stats().wanted == 256 * kMiB);
  CHECK(arena->take_wanted() == 256 * kMiB);
  CHECK(arena->crowded(1, 0).details().find("128M") != std::string::npos);
  CHECK(arena->take_wanted() == 0);
  CHECK(arena->allocate(7 * kMiB).ok());
  // What is on lease already may go to others, who take no more of the arena.
  CHECK(blocks[0]->lendable(0));
  CHECK_FALSE(blocks[0]->lendable(8 * kMiB));
  for (auto& block : blocks) block->returned();
  CHECK(arena->spares(64 * kMiB, 0));
}

TEST_CASE("arena: leases of a publication count in its quota alone") {
  auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  const auto quota = make_ref<Quota>(32 * kMiB);
  std::vector<Ref<Block>> published;
  for (int i = 0; i < 3; ++i) published.push_back(*arena->allocate(16 * kMiB, 0, quota));
  // A peer that holds more than its share of the rest may have it, up to the quota.
  CHECK(published[0]->lendable(60 * kMiB));
  published[0]->lent();
  CHECK(published[1]->lendable(60 * kMiB));
  CHECK_FALSE(published[1]->lendable(60 * kMiB, 1 * kMiB));
  published[1]->lent();
  CHECK_FALSE(published[2]->lendable(0));
  const Status why = published[2]->crowded(0);
  CHECK(why.code() == Code::kResourceExhausted);
  CHECK(why.details().find("33554432 are on lease, and 33554432 may be") != std::string::npos);
  CHECK(why.details().find("a larger quota") != std::string::npos);
  CHECK(arena->stats().wanted == 0);  // a larger arena would not have spared the copy
  // Another reader takes no more of the arena.
  CHECK(published[1]->lendable(60 * kMiB));
  CHECK(quota->leased() == 32 * kMiB);
  CHECK(arena->stats().leased == 32 * kMiB);
  // Nothing of it counts for those without a quota.
  CHECK(arena->spares(16 * kMiB, 31 * kMiB));
  published[0]->returned();
  CHECK(quota->leased() == 16 * kMiB);
  CHECK(published[2]->lendable(0));
  published[1]->returned();
  CHECK(arena->stats().leased == 0);
}

TEST_CASE("arena: small and large blocks never share a page") {
  auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  std::vector<Ref<Block>> blocks;
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const size_t size = i % 3 ? random() % 4033 : 4033 + random() % 20000;
    blocks.push_back(must(arena->allocate(size)));
    if (random() % 3 == 0) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
    }
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const auto& a, const auto& b) { return a->data() < b->data(); });
  for (size_t i = 1; i < blocks.size(); ++i) {
    const Block& left = *blocks[i - 1];
    const Block& right = *blocks[i];
    REQUIRE(left.data() + left.capacity() <= right.data());
    if (!left.leasable() && !right.leasable()) continue;
    const auto last = reinterpret_cast<uintptr_t>(left.data() + left.capacity() - 1);
    REQUIRE(last / page_size() < reinterpret_cast<uintptr_t>(right.data()) / page_size());
  }
}

TEST_CASE("arena: touched memory is used again before fresh pages") {
  auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  auto a = must(arena->allocate(kMiB));
  auto b = must(arena->allocate(2 * kMiB));
  auto c = must(arena->allocate(512 * kKiB));
  const std::byte* const at_b = b->data();
  const size_t resident = arena->stats().resident;
  CHECK(resident == 3 * kMiB + 512 * kKiB);
  CHECK(a->fresh());
  CHECK(c->fresh());

  a = nullptr;
  b = nullptr;  // joins the place of `a`
  CHECK(arena->stats().resident == resident);
  auto d = must(arena->allocate(3 * kMiB));
  CHECK(arena->stats().resident == resident);
  CHECK(d->data() < at_b);
  CHECK_FALSE(d->fresh());

  d = nullptr;
  auto e = must(arena->allocate(kMiB));
  auto f = must(arena->allocate(2 * kMiB));
  CHECK(arena->stats().resident == resident);

  SUBCASE("the smallest fit wins") {
    auto g = must(arena->allocate(64 * kKiB));  // fresh, behind c
    c = nullptr;                                // a hole of 512 KiB
    e = nullptr;                                // a hole of 1 MiB
    const size_t before = arena->stats().resident;
    auto h = must(arena->allocate(512 * kKiB));
    auto i = must(arena->allocate(kMiB));
    CHECK(arena->stats().resident == before);
  }
  SUBCASE("free memory just below the mark is stretched") {
    c = nullptr;
    auto g = must(arena->allocate(kMiB));
    CHECK(arena->stats().resident == 4 * kMiB);
    CHECK_FALSE(g->fresh());
  }
}

TEST_CASE("arena: the cap is on resident bytes") {
  auto arena = make_ref<Arena>(8 * kMiB, 8 * kMiB);
  auto a = must(arena->allocate(2 * kMiB));
  auto b = must(arena->allocate(2 * kMiB));
  auto c = must(arena->allocate(2 * kMiB));
  auto d = must(arena->allocate(2 * kMiB));
  d->lent();
  const auto to_send = arena->allocate_to_send(kMiB);
  REQUIRE_FALSE(to_send.ok());
  CHECK(to_send.status().details().find(
            "8388608 bytes of the arena are in use, 2097152 of these") != std::string::npos);
  CHECK(to_send.status().details().find("is 8M, and 16M would have been enough") !=
        std::string::npos);
  CHECK(arena->stats().wanted == 16 * kMiB);
  const auto full = arena->allocate(1);
  REQUIRE_FALSE(full.ok());
  CHECK(full.status().code() == Code::kResourceExhausted);
  CHECK(full.status().details().find("TENSORWIRE_BUFFER_BYTES (8388608 bytes)") !=
        std::string::npos);
  CHECK(full.status().details().find("8388608 bytes are in use, 2097152 bytes of these leased") !=
        std::string::npos);
  d->returned();

  const auto never = arena->allocate(8 * kMiB + 1, kForever);
  REQUIRE_FALSE(never.ok());
  CHECK(never.status().details().find("can never fit") != std::string::npos);

  a = nullptr;
  CHECK(must(arena->allocate(2 * kMiB)));
}

TEST_CASE("arena: large blocks of an allocator leave room for smaller ones") {
  auto arena = make_ref<Arena>(64 * kMiB, 16 * kMiB);
  CHECK_FALSE(arena->allocate_with_room(64 * kMiB).ok());
  CHECK_FALSE(arena->allocate_with_room(56 * kMiB + page_size()).ok());
  const Ref<Block> large = must(arena->allocate_with_room(56 * kMiB));
  CHECK_FALSE(arena->allocate_with_room(8 * kMiB + page_size()).ok());
  {
    const Ref<Block> small = must(arena->allocate_with_room(8 * kMiB));
    CHECK_FALSE(arena->allocate_with_room(page_size()).ok());
  }
  must(arena->allocate(8 * kMiB));  // whoever asks for arena memory gets it
}

TEST_CASE("arena: dropping slabs") {
  auto arena = make_ref<Arena>(32 * kMiB, 8 * kMiB);

  SUBCASE("a large block has its slab to itself and gets it again") {
    auto big = must(arena->allocate(10 * kMiB));
    CHECK(big->slab().size() == 10 * kMiB);
    const auto generation = big->slab().generation();
    big = nullptr;
    big = must(arena->allocate(9 * kMiB));
    CHECK(big->slab().generation() == generation);
    CHECK(arena->stats().resident == 10 * kMiB);
    CHECK(arena->slabs_dropped() == 0);
  }
  SUBCASE("idle slabs make way when the cap is reached; an index used again has a new generation") {
    auto small = must(arena->allocate(kMiB));
    auto big = must(arena->allocate(12 * kMiB));
    const Ref<Slab> old = Ref<Slab>::share(&big->slab());
    big = nullptr;
    CHECK(arena->stats().resident == 13 * kMiB);
    big = must(arena->allocate(30 * kMiB));
    CHECK(arena->stats().resident == 31 * kMiB);
    CHECK(arena->slabs_dropped() == 1);
    CHECK(old->dropped());
    CHECK_FALSE(big->slab().dropped());
    CHECK(big->slab().index() == old->index());
    CHECK(big->slab().generation() != old->generation());
    old->base()[0] = std::byte{1};  // still mapped while somebody holds it
  }
  SUBCASE("at most half the cap idles, but for what was freed last") {
    auto a = must(arena->allocate(10 * kMiB));
    auto b = must(arena->allocate(20 * kMiB));
    a = nullptr;
    CHECK(arena->slabs_dropped() == 0);
    b = nullptr;
    CHECK(arena->slabs_dropped() == 1);
    CHECK(arena->stats().resident == 20 * kMiB);
  }
  SUBCASE("trim gives all idle memory back, or what has been idle for long") {
    const Nanos before = now();
    must(arena->allocate(10 * kMiB)) = nullptr;
    must(arena->allocate(100)) = nullptr;
    auto held = must(arena->allocate(3 * kMiB));
    arena->trim(before);
    CHECK(arena->stats().slabs == 3);
    arena->trim();
    CHECK(arena->stats().slabs == 1);
    CHECK(arena->stats().resident == 3 * kMiB);
    CHECK(arena->stats().high_water >= 13 * kMiB);
    held = nullptr;
    arena->trim();
    CHECK(arena->stats().slabs == 0);
    CHECK(arena->stats().resident == 0);
    CHECK(arena->stats().reserved == 0);
    CHECK(must(arena->allocate(kMiB)));
  }
}

// The last reference may go anywhere.
TEST_CASE("arena: blocks come home without memory") {
  if (!test::kFailsOnDemand)
    return test::not_tried("ThreadSanitizer insists on its own allocator: none fails on demand");
  bool failed = true;
  int n = 1;
  for (; failed; ++n) {
    CAPTURE(n);
    auto arena = make_ref<Arena>(32 * kMiB, 8 * kMiB);
    std::vector<Ref<Block>> blocks;
    for (size_t size : {10 * kMiB, 10 * kMiB, 9 * kMiB, 5 * kKiB, 5 * kKiB, size_t{100}})
      blocks.push_back(must(arena->allocate(size)));
    {
      test::Failing failing(n);
      blocks.clear();
      failed = failing.end();
    }
    CHECK(arena->stats().blocks == 0);
    CHECK(arena->stats().used == 0);
    CHECK(must(arena->allocate(30 * kMiB)));
  }
  CHECK(n > 3);  // slabs were dropped
}

TEST_CASE("arena: find") {
  auto arena = make_ref<Arena>(32 * kMiB, 8 * kMiB);
  std::vector<Ref<Block>> blocks;
  for (size_t size : {size_t{1}, size_t{100}, size_t{100}, size_t{5000}, kMiB, 9 * kMiB})
    blocks.push_back(must(arena->allocate(size)));
  for (const auto& block : blocks) {
    const std::byte* const data = block->data();
    const size_t size = block->size();
    CAPTURE(size);
    CHECK(arena->find(data, size).get() == block.get());
    CHECK(arena->find(data + size - 1, 1).get() == block.get());
    CHECK(arena->find(data, 0).get() == block.get());
    CHECK_FALSE(arena->find(data, size + 1));
    CHECK_FALSE(arena->find(data + 1, size));
    CHECK_FALSE(arena->find(data, ~size_t{0}));
  }
  int elsewhere = 0;
  CHECK_FALSE(arena->find(&elsewhere, sizeof elsewhere));
  CHECK_FALSE(arena->find(nullptr, 1));
  const std::byte* const gone = blocks[4]->data();
  blocks[4] = nullptr;
  CHECK_FALSE(arena->find(gone, 1));
  blocks.clear();
  CHECK(arena->stats().used == 0);  // what was found is kept by nobody else
}

TEST_CASE("arena: published is a property of the block") {
  auto arena = make_ref<Arena>(8 * kMiB);
  auto block = must(arena->allocate(100));
  CHECK_FALSE(block->published());
  block->publish();
  CHECK(arena->find(block->data() + 4, 8)->published());
  block = nullptr;
  CHECK_FALSE(must(arena->allocate(100))->published());
}

TEST_CASE("arena: blocks keep it alive") {
  auto arena = make_ref<Arena>(8 * kMiB);
  auto block = must(arena->allocate(kMiB));
  arena = nullptr;
  std::memset(block->data(), 1, block->size());
}

TEST_CASE("arena: leased bytes are counted once for each block") {
  auto arena = make_ref<Arena>(8 * kMiB);
  auto block = must(arena->allocate(kMiB));
  block->lent();
  block->lent();
  CHECK(arena->stats().leased == kMiB);
  block->returned();
  CHECK(arena->stats().leased == kMiB);
  block->returned();
  CHECK(arena->stats().leased == 0);
}

TEST_CASE("arena: waiting for space") {
  auto arena = make_ref<Arena>(4 * kMiB, 4 * kMiB);
  auto block = must(arena->allocate(4 * kMiB));

  SUBCASE("a freed block ends it") {
    // Whether the block goes before or during the wait, the wait must end.
    std::thread owner([&] { block = nullptr; });
    CHECK(arena->allocate(kMiB, kForever).ok());
    owner.join();
  }
  SUBCASE("the deadline ends it") {
    const auto late = arena->allocate(kMiB, now() + kMillisecond);
    REQUIRE_FALSE(late.ok());
    CHECK(late.status().code() == Code::kResourceExhausted);
  }
  SUBCASE("interrupt ends it") {
    std::atomic<bool> over{false};
    std::thread waiter([&] {
      const auto result = arena->allocate(kMiB, kForever);
      CHECK_FALSE(result.ok());
      CHECK(result.status().code() == Code::kCancelled);
      over = true;
    });
    while (!over) {
      arena->interrupt();
      std::this_thread::yield();
    }
    waiter.join();
  }
}

TEST_CASE("arena: a forked child releases nothing") {
  auto arena = make_ref<Arena>(8 * kMiB);
  auto block = must(arena->allocate(kMiB));
  block->data()[0] = std::byte{1};
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto refused = arena->allocate(10);
    bool good = !refused.ok() && refused.status().code() == Code::kFailedPrecondition;
    good = good && !arena->find(block->data(), 1);
    block->data()[0] = std::byte{2};  // inherited arena memory stays shared
    block = nullptr;
    arena->trim();
    good = good && arena->stats().capacity == 8 * kMiB;
    good = good && make_ref<Arena>(kMiB)->allocate(10).ok();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(arena->stats().blocks == 1);
  CHECK(arena->find(block->data(), 1).get() == block.get());
  CHECK(block->data()[0] == std::byte{2});
}

TEST_CASE("arena: threads allocate, find and free at once, and no byte has two owners") {
  auto arena = make_ref<Arena>(32 * kMiB, 4 * kMiB);
  std::atomic<std::byte*> bait{nullptr};
  std::atomic<int> failures{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Ref<Block>> mine;
    for (int i = 0; i < 3000; ++i) {
      const size_t size = random() % 4 ? 1 + random() % 6000 : 1 + random() % (256 * kKiB);
      auto block = arena->allocate(size);
      if (!block) {
        mine.clear();
        continue;
      }
      // Stamp both ends; a block given out twice shows as a foreign stamp.
      (*block)->data()[0] = (*block)->data()[size - 1] = static_cast<std::byte>(seed);
      bait.store((*block)->data(), std::memory_order_relaxed);
      mine.push_back(std::move(*block));
      if (const auto found = arena->find(bait.load(std::memory_order_relaxed), 1))
        failures += found->size() == 0;
      if (mine.size() > 20 || random() % 3 == 0) {
        const size_t victim = random() % mine.size();
        const Block& block_out = *mine[victim];
        failures += block_out.data()[0] != static_cast<std::byte>(seed);
        failures += block_out.data()[block_out.size() - 1] != static_cast<std::byte>(seed);
        std::swap(mine[victim], mine.back());
        mine.pop_back();
      }
      if (i % 500 == 0) arena->trim();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  for (auto& thread : threads) thread.join();
  CHECK(failures == 0);
  const ArenaStats stats = arena->stats();
  CHECK(stats.blocks == 0);
  CHECK(stats.used == 0);
  CHECK(stats.resident <= stats.capacity);
  arena->trim();
  CHECK(arena->stats().resident == 0);
}

TEST_CASE("arena: random use agrees with a plain account of it") {
  constexpr size_t kCap = 16 * kMiB;
  auto arena = make_ref<Arena>(kCap, 2 * kMiB);
  std::mt19937 random(11);
  std::vector<Ref<Block>> live;
  size_t used = 0;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (!live.empty() && (random() % 20 < 9 || live.size() > 900)) {
      std::swap(live[random() % live.size()], live.back());
      used -= live.back()->capacity();
      live.pop_back();
    } else {
      size_t size = 1 + random() % 3000;
      if (random() % 2) size = 4096 + random() % (100 * kKiB);
      if (random() % 50 == 0) size = 512 * kKiB + random() % (2 * kMiB);
      auto block = arena->allocate(size);
      if (!block) {
        ++refused;
        continue;
      }
      used += (*block)->capacity();
      live.push_back(std::move(*block));
    }
    if (random() % 2000 == 0) arena->trim();
    const ArenaStats stats = arena->stats();
    REQUIRE(stats.used == used);
    REQUIRE(stats.blocks == live.size());
    REQUIRE(stats.resident <= kCap);
    REQUIRE(stats.resident >= used);
    REQUIRE(stats.reserved >= stats.resident);
  }
  CHECK(refused > 0);
  CHECK(live.size() > 10);
}

}  // namespace
}  // namespace tw
