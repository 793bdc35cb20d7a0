// SPDX-License-Identifier: Apache-2.0
// Whether a host has fallen silent, found out by somebody who looks at it now and then.
//
// What counts is the word of its kernel: that acknowledges what was sent, whatever the processes
// there do. Silence is the time for which something was not acknowledged, and nothing else was.
// It is the kernel here that notes when it heard of the other one, so that a look that comes late
// finds nobody guilty.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "transport/transport.h"

namespace tw {

// Not thread-safe.
class Silence {
 public:
  // A host that falls silent is found within `limit` by who looks kLooks times in that.
  explicit Silence(Nanos limit) : limit_(limit) {}
  static constexpr Nanos kLooks = 20;
  // One who is lost only after so long a silence.
  static Silence after(Nanos silent) { return Silence(silent * kLooks / kLostAfter); }
  // How often to look.
  Nanos every() const { return limit_ / kLooks; }

  // kAsk: it is quiet, perhaps for want of anything to answer: whoever looks sends it something.
  enum class Verdict : uint8_t { kThere, kAsk, kLost };
  Verdict look(Nanos at, const HostAnswer& answer) {
    // After a long time without a look everything has stood still, perhaps: a machine that was
    // stopped hears of the others only once it goes on.
    if (!answer.due || at - looked_ > limit_ / 2) quiet_since_ = at;
    looked_ = at;
    const Nanos silent = std::min(at - quiet_since_, answer.ago);
    if (silent >= kLostAfter * limit_ / kLooks) return Verdict::kLost;
    const bool quiet = answer.ago >= kQuietAfter * limit_ / kLooks;
    if (!quiet || !answer.room || at - asked_ < kAskEvery * limit_ / kLooks) return Verdict::kThere;
    asked_ = at;
    return Verdict::kAsk;
  }

 private:
  // In looks. The kernel repeats what is not acknowledged after a fifth of a second, and then after
  // twice as long: within the shortest limit, a second, a host that is there has that one chance.
  static constexpr Nanos kQuietAfter = 4, kAskEvery = 5, kLostAfter = 13;

  Nanos limit_;
  Nanos looked_ = 0, asked_ = 0;
  Nanos quiet_since_ = 0;  // it owes an answer at least since then
};

}  // namespace tw
