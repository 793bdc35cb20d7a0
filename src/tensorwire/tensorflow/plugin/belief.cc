// SPDX-License-Identifier: Apache-2.0
#include "belief.h"

#include <algorithm>
#include <utility>

namespace tensorwire {
namespace {

constexpr auto kFirst = std::chrono::seconds(30);
constexpr auto kLongest = std::chrono::seconds(300);
constexpr auto kUnanswered = std::chrono::seconds(1);

}  // namespace

Belief::Advice Belief::consult(Known known, Clock::time_point now) {
  if (known != Known::kNothing && now < until_) return {true, false};
  return {known == Known::kWay, !std::exchange(asking_, true)};
}

void Belief::linked(Clock::time_point until) {
  failures_ = 0;
  settle(until);
}

void Belief::declined(Clock::time_point now) {
  failures_ = 0;
  settle(now + kFirst);
}

void Belief::unreached(Clock::time_point now) {
  const auto doubled = kFirst * (1 << std::min(failures_++, 8));
  settle(now + std::min<Clock::duration>(doubled, kLongest));
}

void Belief::unanswered(Clock::time_point now) { settle(now + kUnanswered); }

void Belief::settle(Clock::time_point until) {
  until_ = until;
  asking_ = false;
}

}  // namespace tensorwire
