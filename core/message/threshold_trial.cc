// SPDX-License-Identifier: Apache-2.0
#include "message/threshold_trial.h"

namespace tw {
namespace {

// What a pair says: ln(2/3 : 1/2) where it is won, ln(1/3 : 1/2) where it is not.
constexpr double kWon = 0.28768, kNotWon = -0.40547;
// So likely it has to be. To move where nothing is gained: 1 in 100; to stay where two of three
// pairs are won: 1 in 20.
constexpr double kClear = 4.5539, kClearlyNot = -2.9857;

// At least 5 % less.
bool wins(Nanos other, Nanos usual) { return other * 105 <= usual * 100; }

// The pairs' names as evenly spread bits without a period: multiples of the golden ratio.
bool coin(uint64_t pair) { return (pair * 0x9e3779b97f4a7c15) >> 63 != 0; }

}  // namespace

ThresholdTrial::ThresholdTrial(size_t eager_bytes, size_t lowest, size_t highest)
    : eager_bytes_(eager_bytes), lowest_(lowest), highest_(highest) {
  for (const Which which : {kBelow, kAbove}) sides_[which].settled = !permits(which);
}

size_t ThresholdTrial::above() const {
  if (!sides_[kBelow].settled) return eager_bytes_ / 2;
  return sides_[kAbove].settled ? 0 : eager_bytes_;
}

size_t ThresholdTrial::up_to() const {
  if (!sides_[kAbove].settled) return eager_bytes_ * 2;
  return sides_[kBelow].settled ? 0 : eager_bytes_;
}

ThresholdTrial::Turn ThresholdTrial::begin(size_t largest) {
  const Which which = largest > eager_bytes_ ? kAbove : kBelow;
  Side& side = sides_[which];
  Turn turn{eager_bytes_, 0, which == kAbove, false};
  if (side.settled) return turn;
  const auto place = static_cast<uint32_t>(side.calls % kRound);
  if (place == 0) {
    side.settled = side.calls == kMostRounds * kRound;
    if (side.settled) return turn;
    side.pair = ++pairs_;
    side.other_first = coin(side.pair);
    side.took = {};
  }
  ++side.calls;
  if (place >= 2 * kTogether) return turn;
  turn.other = (place < kTogether) == side.other_first;
  if (turn.other) turn.eager_bytes = next(which);
  if (place % kTogether == kTogether - 1) turn.pair = side.pair;
  return turn;
}

bool ThresholdTrial::end(const Turn& turn, Nanos took) {
  Side& side = sides_[turn.above ? kAbove : kBelow];
  // The round may be over, or the threshold may have moved, while it was under way.
  if (turn.pair == 0 || turn.pair != side.pair || side.settled) return false;
  side.took[turn.other] = took;
  const auto [usual, other] = side.took;
  if (usual == 0 || other == 0) return false;
  side.pair = 0;
  side.score += wins(other, usual) ? kWon : kNotWon;
  if (side.score >= kClear) {
    move(turn.above ? kAbove : kBelow);
    return true;
  }
  side.settled = side.score <= kClearlyNot;
  return false;
}

bool ThresholdTrial::permits(Which which) const {
  return which == kBelow ? next(which) >= lowest_ : next(which) <= highest_;
}

// Back is what has just been compared.
void ThresholdTrial::move(Which to) {
  eager_bytes_ = next(to);
  sides_ = {};
  sides_[to].settled = !permits(to);
  sides_[to == kBelow ? kAbove : kBelow].settled = true;
}

}  // namespace tw
