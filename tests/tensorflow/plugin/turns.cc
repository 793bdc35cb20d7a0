// SPDX-License-Identifier: Apache-2.0
// Operations have their turns when they wait at all members.
#include "turns.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>

namespace tensorwire {
namespace {

using Tickets = Turns::Tickets;

TEST_CASE("turns: an operation has its turn when it waits at all members") {
  Turns turns(3);
  CHECK_FALSE(turns.ready(2, {1, 1}, 20));
  CHECK_FALSE(turns.ready(0, {1, 1}, 5));
  CHECK_FALSE(turns.ready(1, {1, 2}, 7));  // another key
  CHECK(turns.waiting() == 3);
  CHECK(turns.ready(1, {1, 1}, 8) == Tickets{5, 8, 20});
  CHECK(turns.waiting() == 1);
}

TEST_CASE("turns: several with a key go in the order in which they were told") {
  Turns turns(2);
  CHECK_FALSE(turns.ready(0, {1, 1}, 1));
  CHECK_FALSE(turns.ready(0, {1, 1}, 2));
  CHECK(turns.ready(1, {1, 1}, 30) == Tickets{1, 30});
  CHECK(turns.ready(1, {1, 1}, 31) == Tickets{2, 31});
  CHECK(turns.waiting() == 0);
}

TEST_CASE("turns: each member may tell in an order of its own") {
  constexpr size_t kMembers = 4, kOperations = 200;
  std::mt19937 random(7);
  Turns turns(kMembers);
  std::vector<std::pair<size_t, uint64_t>> told;  // rank, operation
  for (size_t rank = 0; rank < kMembers; ++rank)
    for (uint64_t operation = 0; operation < kOperations; ++operation)
      told.emplace_back(rank, operation);
  std::shuffle(told.begin(), told.end(), random);
  size_t given = 0;
  for (const auto& [rank, operation] : told) {
    const auto tickets = turns.ready(rank, {operation, 0}, 1000 * rank + operation);
    if (!tickets) continue;
    ++given;
    for (size_t each = 0; each < kMembers; ++each)
      CHECK((*tickets)[each] == 1000 * each + operation);
  }
  CHECK(given == kOperations);
  CHECK(turns.waiting() == 0);
}

}  // namespace
}  // namespace tensorwire
