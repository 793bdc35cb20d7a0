// SPDX-License-Identifier: Apache-2.0
// Shares of one size that go around a ring, which is how an all-gather and a reduce-scatter do it.
#pragma once

#include <algorithm>

#include "collective/part.h"
#include "collective/steps/algorithms.h"

namespace tw::collective::steps {

// The messages of a rank, in their order. A share is cut into pieces, which go around by waves: a
// few at a time make all turns, so that what a rank has taken in one turn is still in its caches
// when it gives that in the next one.
class Around {
 public:
  explicit Around(const Messages& messages)
      : call_(messages.part()),
        turns_(static_cast<size_t>(messages.team().size()) - 1),
        waves_(std::max<size_t>(1, (call_.bytes() + kWave - 1) / kWave)),
        pieces_(waves_ > 1 ? kPieces : messages_of(call_.bytes())) {}

  size_t messages() const { return waves_ * turns_ * pieces_; }
  // Of a message: in which turn it goes, and what of a share, in elements.
  size_t turn(size_t i) const { return i / pieces_ % turns_; }
  Part piece(size_t i) const {
    const size_t wave = i / (turns_ * pieces_);
    return part_of(call_.count, size_of(call_.type), static_cast<int>(wave * pieces_ + i % pieces_),
                   static_cast<int>(waves_ * pieces_));
  }
  // What a message brings goes on in the one that is so many behind it.
  size_t distance() const { return pieces_; }
  // How many are sent ahead of what they are answered with.
  size_t ahead() const { return std::min<size_t>(pieces_, kAhead); }

 private:
  static constexpr size_t kPieces = 4, kAhead = 2, kWave = kPieces * Messages::kChunk;

  const CollectiveCall& call_;
  const size_t turns_, waves_, pieces_;
};

// Each rank gives its right neighbour a piece of a share, and takes one from the left one:
//   give(turn, piece, i)         the data of message i
//   take(turn, piece, i, data)   that of the neighbour's; what it leaves is given by
//                                message i + distance()
template <class Give, class Take>
Status go_around(Messages& messages, const Around& way, Give&& give, Take&& take) {
  const Team& team = messages.team();
  const int left = team.before(1), right = team.after(1);
  const size_t share = messages.part().bytes(), width = size_of(messages.part().type);
  for (size_t i = 0; i < way.messages() + way.ahead() - 1; ++i) {
    if (i < way.messages()) {
      const Part piece = way.piece(i);
      if (Status status = messages.expect(left); !status.ok()) return status;
      if (Status status =
              messages.send(right, {give(way.turn(i), piece, i), piece.size() * width}, share);
          !status.ok())
        return status;
    }
    if (i + 1 < way.ahead()) continue;
    const size_t come = i + 1 - way.ahead();
    const Part piece = way.piece(come);
    const auto data = messages.receive(left, piece.size() * width, share);
    if (!data) return data.status();
    if (piece.size() != 0) take(way.turn(come), piece, come, data->data());
  }
  return messages.finish();
}

}  // namespace tw::collective::steps
