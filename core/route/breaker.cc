// SPDX-License-Identifier: Apache-2.0
#include "route/breaker.h"

#include <utility>

namespace tw::route {

bool Breaker::died(Nanos lived, std::string why, Backoff& backoff, Nanos now) {
  if (lived >= kSteady)
    *this = Breaker(first_, longest_);
  else
    fail(std::move(why), failures_ + 1 >= kEnough, backoff, now);
  return open(now);
}

void Breaker::unreached(std::string why, Backoff& backoff, Nanos now) {
  fail(std::move(why), true, backoff, now);
}

void Breaker::fail(std::string why, bool pause, Backoff& backoff, Nanos now) {
  why_ = std::move(why);
  ++failures_;
  if (pause) until_ = now + backoff.pause(failures_, first_, longest_);
}

bool Breaker::news(Nanos now) {
  if (told_ || !open(now)) return false;
  return told_ = true;
}

}  // namespace tw::route
