// SPDX-License-Identifier: Apache-2.0
#include "process/online_thresholds.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace tw::test {
namespace {

constexpr size_t kCoalesced = 1 << 10;

// As if bulk took half as long.
void call(OnlineThreshold& threshold, size_t size) {
  if (!threshold.tries(size)) return;
  const auto turn = threshold.begin(size);
  threshold.end(turn, size > turn.eager_bytes ? 50 : 100);
}

TEST_CASE("online thresholds: links by one transport to one host have one") {
  OnlineThresholds all;
  const auto first = all.of("shm", "same_host", 64 << 10, kCoalesced);
  CHECK(all.of("shm", "same_host", 64 << 10, kCoalesced).get() == first.get());
  for (const auto& other : {all.of("tcp", "same_host", 64 << 10, kCoalesced),
                            all.of("shm", "10.0.0.2", 64 << 10, kCoalesced),
                            all.of("shm", "same_host", 64 << 10, 2 * kCoalesced)})
    CHECK(other.get() != first.get());
  CHECK_FALSE(first->moved());
  for (int i = 0; i < 1000 && !first->moved(); ++i) call(*first, 48 << 10);
  CHECK(first->moved());
  CHECK(all.of("shm", "same_host", 64 << 10, kCoalesced)->eager_bytes() == 32 << 10);
}

TEST_CASE("online thresholds: what is coalesced is the least that is copied along") {
  OnlineThreshold threshold(4 << 10, 8 << 10);
  CHECK(threshold.eager_bytes() == 8 << 10);
  CHECK_FALSE(threshold.moved());
  CHECK_FALSE(threshold.tries(8 << 10));
  CHECK(threshold.tries((8 << 10) + 1));
}

TEST_CASE("online thresholds: of many hosts the last ones have none") {
  OnlineThresholds all;
  const auto of = [&](size_t host) { return all.of("tcp", std::to_string(host), 1 << 14, 0); };
  size_t hosts = 0;
  while (hosts < 100'000 && of(hosts)) ++hosts;
  CHECK(hosts < 100'000);
  CHECK(of(0));
}

TEST_CASE("online thresholds: many threads find the same") {
  OnlineThreshold threshold(256 << 10, kCoalesced);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5'000; ++i) call(threshold, (kCoalesced << (i % 8)) + kCoalesced / 2);
    });
  for (auto& thread : threads) thread.join();
  CHECK(threshold.moved());
  CHECK(threshold.eager_bytes() >= kCoalesced);
}

}  // namespace
}  // namespace tw::test
