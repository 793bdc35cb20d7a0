// SPDX-License-Identifier: Apache-2.0
// A circuit breaker: a transport whose links to a peer keep failing is passed over for a while.
#pragma once

#include <string>

#include "base/clock.h"
#include "route/backoff.h"

namespace tw::route {

// Closed, the transport may be taken; open, it is passed over until `until()`. Its owner holds a
// lock.
class Breaker {
 public:
  // A link that lived so long was a good one, whatever ended it: an adapter that nobody answers may
  // take 4 x 2 s to say so.
  static constexpr Nanos kSteady = 30 * kSecond;
  // Links in a row that died young, after which the next one is not made at once.
  static constexpr int kEnough = 2;
  static constexpr Nanos kFirstPause = 10 * kSecond;
  static constexpr Nanos kLongestPause = 300 * kSecond;

  explicit Breaker(Nanos first = kFirstPause, Nanos longest = kLongestPause)
      : first_(first), longest_(longest) {}

  // A link has ended after `lived`. Whether the transport is passed over now.
  bool died(Nanos lived, std::string why, Backoff& backoff, Nanos now);
  // None could be made. Another transport is tried at once, so this one can wait.
  void unreached(std::string why, Backoff& backoff, Nanos now);

  bool open(Nanos now) const { return now < until_; }
  Nanos until() const { return until_; }
  // What failed last.
  const std::string& why() const { return why_; }
  // Whether it is open and nobody was told; true once, until a link was good again.
  bool news(Nanos now);

 private:
  void fail(std::string why, bool pause, Backoff& backoff, Nanos now);

  Nanos first_, longest_;  // pauses
  int failures_ = 0;
  Nanos until_ = 0;
  std::string why_;
  bool told_ = false;
};

}  // namespace tw::route
