// SPDX-License-Identifier: Apache-2.0
// What calls find out about a threshold, with times that are drawn from fixed seeds.
#include "message/threshold_trial.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tw::test {
namespace {

constexpr size_t kLowest = 1 << 10, kHighest = 256 << 10;

// Microseconds of a call, by the size of its segment.
using Cost = double (*)(size_t size, bool bulk);

// Both ways cost the same at 24 KiB.
double crossing(size_t size, bool bulk) {
  return bulk ? 16 : 10 + 0.25 * static_cast<double>(size) / 1024;
}
double equal(size_t, bool) { return 16; }

// A peer that sleeps now and then, for some calls in a row, so that they take so much longer.
struct Noise {
  double spread;  // of the logarithm of a call's time
  double asleep_us;
};

struct Run {
  size_t eager_bytes = 0;
  uint64_t calls = 0, others = 0, moves = 0;
};

// Calls of all sizes that take turns, until nothing is left to be found out.
Run run(size_t eager_bytes, Cost cost, const Noise& noise, uint64_t seed) {
  ThresholdTrial trial(eager_bytes, kLowest, kHighest);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> spread(0, noise.spread);
  std::uniform_real_distribution<double> share(0, 1);
  bool asleep = false;
  Run found;
  while (trial.up_to() != 0) {
    const auto smallest = static_cast<double>(trial.above() + 1);
    const auto size = static_cast<size_t>(
        smallest * std::pow(static_cast<double>(trial.up_to()) / smallest, share(random)));
    if (share(random) < 0.02) asleep = !asleep;
    const ThresholdTrial::Turn turn = trial.begin(size);
    const double us = cost(size, size > turn.eager_bytes) * std::exp(spread(random)) +
                      (asleep ? noise.asleep_us : 0);
    ++found.calls;
    found.others += turn.other;
    found.moves += trial.end(turn, static_cast<Nanos>(us * 1000));
  }
  found.eager_bytes = trial.eager_bytes();
  return found;
}

TEST_CASE("threshold trial: the better way is found from either side, with bounded trials") {
  constexpr int kRuns = 100;
  for (const size_t from : {kHighest, kLowest}) {
    CAPTURE(from);
    int close = 0;
    for (uint64_t seed = 1; seed <= kRuns; ++seed) {
      const Run found = run(from, crossing, {0.15, 18}, seed);
      close += found.eager_bytes >= 16 << 10 && found.eager_bytes <= 32 << 10;
      // Rounds that a verdict cuts short begin with what goes the other way.
      CHECK(found.others * 8 <= found.calls + (found.moves + 2) * ThresholdTrial::kRound);
      // From one end to the other there are eight octaves, and no way back.
      CHECK(found.moves <= 8);
      CHECK(found.others <= 9 * ThresholdTrial::kMostRounds * ThresholdTrial::kTogether);
    }
    CHECK(close >= kRuns * 90 / 100);
  }
}

TEST_CASE("threshold trial: where both ways cost the same it stays") {
  constexpr int kRuns = 400;
  for (const Noise& noise : {Noise{0.02, 0}, Noise{0.5, 0}, Noise{0.2, 18}, Noise{1.5, 100}}) {
    CAPTURE(noise.spread);
    int moved = 0;
    for (uint64_t seed = 1; seed <= kRuns; ++seed) {
      const Run found = run(16 << 10, equal, noise, seed);
      moved += found.eager_bytes != 16 << 10;
      if (found.moves == 0)
        CHECK(found.others <= 2 * ThresholdTrial::kMostRounds * ThresholdTrial::kTogether);
    }
    CHECK(moved <= kRuns * 5 / 100);
  }
}

TEST_CASE("threshold trial: a program whose calls differ in turns favours no way") {
  for (const uint64_t period : {4, 16}) {
    CAPTURE(period);
    ThresholdTrial trial(16 << 10, kLowest, kHighest);
    // Of each pair the call that comes first goes to a method that takes ten times as long.
    for (uint64_t call = 0; trial.above() != 16 << 10; ++call) {
      REQUIRE(call < 10'000);
      trial.end(trial.begin(10 << 10), call % period == 1 ? 100'000 : 10'000);
    }
    CHECK(trial.eager_bytes() == 16 << 10);
  }
}

TEST_CASE("threshold trial: calls that never end well end the trials, too") {
  ThresholdTrial trial(16 << 10, kLowest, kHighest);
  uint64_t calls = 0, others = 0;
  for (; trial.above() != 16 << 10; ++calls) {
    REQUIRE(calls <= ThresholdTrial::kMostRounds * ThresholdTrial::kRound);
    others += trial.begin(10 << 10).other;
  }
  CHECK(others == ThresholdTrial::kMostRounds * ThresholdTrial::kTogether);
  CHECK(trial.up_to() == 32 << 10);
}

TEST_CASE("threshold trial: what ends late, or twice, says nothing") {
  ThresholdTrial trial(16 << 10, kLowest, kHighest);
  std::vector<ThresholdTrial::Turn> turns;
  while (trial.eager_bytes() == 16 << 10) {
    turns.push_back(trial.begin(10 << 10));
    REQUIRE(turns.size() < 1000);
    trial.end(turns.back(), turns.back().other ? 50 : 100);
  }
  CHECK(trial.eager_bytes() == 8 << 10);
  for (const ThresholdTrial::Turn& turn : turns) CHECK_FALSE(trial.end(turn, turn.other ? 1 : 100));
  CHECK(trial.eager_bytes() == 8 << 10);
  // There is no way back.
  CHECK(trial.up_to() == 8 << 10);
  CHECK(trial.above() == 4 << 10);
}

TEST_CASE("threshold trial: limits are kept") {
  struct Case {
    size_t eager_bytes, above, up_to;
  };
  for (const Case& c : {Case{0, 0, 0}, Case{1 << 10, 1 << 10, 2 << 10}, Case{2047, 2047, 4094},
                        Case{2048, 1024, 4096}, Case{kHighest, kHighest / 2, kHighest},
                        Case{kHighest / 2 + 1, kHighest / 4, kHighest / 2 + 1},
                        Case{1 << 20, 512 << 10, 1 << 20}}) {
    CAPTURE(c.eager_bytes);
    const ThresholdTrial trial(c.eager_bytes, kLowest, kHighest);
    CHECK(trial.above() == c.above);
    CHECK(trial.up_to() == c.up_to);
  }
}

}  // namespace
}  // namespace tw::test
