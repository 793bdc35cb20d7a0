// SPDX-License-Identifier: Apache-2.0
// Finds by comparing calls whether another threshold for what is copied along would be better
// (docs/decisions/0032-tuned-links.md). No clock, no lock: who makes calls asks how each one goes,
// and tells how long it took.
//
// The next lower threshold and the next higher one are half and twice as large. They make a
// difference for calls whose largest segment lies within an octave below the threshold, or above
// it. Of 16 such calls two go the other way, one right after the other, and the two beside them go
// as ever. Of each two the second is measured: the first pays for what the call before it has left
// behind, as leases that come home. Which two come first is as good as random, so that a program
// whose calls differ in turns favours neither.
//
// Calls of one way differ by more than the ways do, hence the test knows the better of a pair only.
// The other way wins where it takes 5 % less. Whether it wins two pairs of three, rather than one
// of two, is decided as soon as that is clear (Wald's sequential test); then the threshold moves,
// or stays for good. Where nothing is gained, however much times vary, it moves to either side once
// in a hundred.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace tw {

class ThresholdTrial {
 public:
  static constexpr uint32_t kRound = 16, kTogether = 2;
  // Without a clear result after as many the threshold stays.
  static constexpr uint32_t kMostRounds = 128;

  // How a call goes.
  struct Turn {
    size_t eager_bytes = 0;  // up to this size its segments are copied along
    uint64_t pair = 0;       // end() wants its time; 0: nobody does
    bool above = false;      // its largest segment is larger than the threshold
    bool other = false;      // it goes as the next threshold would have it
  };

  // Stays within these limits. A threshold outside may move closer to them.
  ThresholdTrial(size_t eager_bytes, size_t lowest, size_t highest);

  size_t eager_bytes() const { return eager_bytes_; }
  // begin() is for calls whose largest segment is larger than above(), and not larger than up_to().
  // Equal: nothing is left to be found out.
  size_t above() const;
  size_t up_to() const;
  Turn begin(size_t largest);
  // A call that began so has ended well. True: the threshold has moved.
  bool end(const Turn& turn, Nanos took);

 private:
  enum Which : uint8_t { kBelow, kAbove };
  // The comparison with the next threshold on one side.
  struct Side {
    bool settled = false;
    uint64_t calls = 0;
    uint64_t pair = 0;  // under way
    bool other_first = false;
    std::array<Nanos, 2> took{};  // of the pair: as ever, and the other way; 0: not yet
    double score = 0;             // the logarithm of how much likelier two of three is
  };
  size_t next(Which which) const { return which == kBelow ? eager_bytes_ / 2 : eager_bytes_ * 2; }
  bool permits(Which which) const;
  void move(Which to);

  size_t eager_bytes_;
  const size_t lowest_, highest_;
  uint64_t pairs_ = 0;  // names
  std::array<Side, 2> sides_;
};

}  // namespace tw
