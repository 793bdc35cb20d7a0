// SPDX-License-Identifier: Apache-2.0
// Links that find a threshold while calls go. Whatever they find, what is sent arrives, and nobody
// lets go of memory that somebody reads.
#include "test/call/helper.h"

namespace tw::test {
namespace {

constexpr auto kEager = static_cast<size_t>(Threshold::kEager);
constexpr auto kCoalesce = static_cast<size_t>(Threshold::kCoalesce);

// Calls from some threads, around the size where the link begins.
void exchange(CallPort& link, size_t around) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (uint32_t i = 0; i < 150; ++i) {
        const auto first = bytes_of(around / 2 + random() % around, t * 1000 + i);
        const auto second = bytes_of(random() % (2 * around), i);
        std::vector<OutSegment> segments{out(first), out(second)};
        const Ref<Block> block = i % 3 ? nullptr : block_of(first);
        if (block) {
          block->publish();
          segments[0] = out({block->data(), first.size()});
        }
        const Reply reply = unary(link, "/t/Echo", std::move(segments));
        wrong += reply.code != Code::kOk || reply.segments.size() != 2 ||
                 !same(reply.segments[0], first) || !same(reply.segments[1], second);
      }
    });
  for (auto& thread : threads) thread.join();
  REQUIRE(wrong == 0);
}

template <class Way>
void try_way() {
  House house(echo);
  // Other coalescing than the settings', so that the trials are of this way alone.
  house.thresholds[kCoalesce] = 1 << 10;
  {
    Closing link(house.connect<Way>());
    const size_t begun = link->link().eager_bytes();
    REQUIRE(link->link().online() != nullptr);
    exchange(*link, begun);
    const LinkStats stats = link->stats();
    REQUIRE(stats.trials > 0);
    REQUIRE(stats.trials <= 600);
    const Thresholds told = link->link().thresholds();
    REQUIRE(told.bytes[kEager] == link->link().eager_bytes());
    REQUIRE((told.sources[kEager] == Source::kOnline) == (told.bytes[kEager] != begun));
    // The next link begins with that.
    Closing next(house.connect<Way>());
    REQUIRE(next->link().thresholds().bytes == told.bytes);
  }
  house.thresholds[kEager] = 16 << 10;
  Closing set(house.connect<Way>());
  exchange(*set, 16 << 10);
  REQUIRE(set->stats().trials == 0);
  REQUIRE(set->link().thresholds().bytes[kEager] == 16 << 10);
  REQUIRE(set->link().thresholds().sources[kEager] == Source::kArgument);
}

TEST_CASE("helper: links that try" * doctest::skip()) {
  ArenaWatch arena;
  try_way<ShmWay>();
  try_way<TcpWay>();
  try_way<ReadWay>();
  REQUIRE(arena.restored());
  write_thing(kToTest, true);
}

TEST_CASE("online: calls try the other way, and all arrives") {
  Helper helper("links that try", "TENSORWIRE_TUNE_ONLINE=on");
  CHECK(helper.hear<bool>());
}

TEST_CASE("online: without the setting nobody tries") {
  House house(echo);
  Closing link(house.connect<ShmWay>());
  CHECK(link->link().online() == nullptr);
  CHECK(link->link().eager_bytes() == link->link().profile().eager_bytes);
}

}  // namespace
}  // namespace tw::test
