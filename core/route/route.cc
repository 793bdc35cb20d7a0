// SPDX-License-Identifier: Apache-2.0
#include "route/route.h"

#include <algorithm>
#include <utility>

namespace tw::route {

Route::Route(std::vector<Candidate> transports, Policy policy, std::string_view fallback,
             uint32_t seed, const Pauses& pauses)
    : transports_(std::move(transports)),
      policy_(std::move(policy)),
      may_fall_back_(policy_.permits(fallback)),
      pauses_(pauses),
      backoff_(seed) {
  // Passing over the only way would help nobody.
  bool another = may_fall_back_;
  for (auto at = transports_.rbegin(); at != transports_.rend(); ++at) {
    if (at->fragile && another)
      breakers_.insert(breakers_.begin(),
                       {at->name, Breaker(pauses.first_of_breaker, pauses.longest_of_breaker)});
    another |= policy_.permits(at->name);
  }
}

Route::Advice Route::consult(Nanos now) {
  if (linked_) {
    const bool begin = !attempted_ && now >= better_from_;
    attempted_ |= begin;
    awaited_ = false;
    return {Use::kLink, begin, 0};
  }
  bool begin = false;
  if (!attempted_) {
    if (now < retry_) return {may_fall_back_ ? Use::kFallback : Use::kNothing, false, retry_};
    begin = attempted_ = true;
    awaited_ = !fell_back_;
  }
  return {awaited_ || !may_fall_back_ ? Use::kAttempt : Use::kFallback, begin, retry_};
}

void Route::linked(std::string_view transport, Nanos now) {
  attempted_ = awaited_ = fell_back_ = false;
  linked_ = true;
  transport_ = transport;
  since_ = now;
  ++links_;
  better_from_ = kForever;
  for (const auto& [name, its] : breakers_)
    if (is_better(name) && its.open(now)) better_from_ = std::min(better_from_, its.until());
}

void Route::failed(Failure failure, Nanos now) {
  attempted_ = awaited_ = false;
  if (linked_) {  // it was for a better one
    better_from_ = failure == Failure::kFinal ? kForever : now + pauses_.longest;
    for (const auto& [name, its] : breakers_)
      if (is_better(name)) better_from_ = std::max(better_from_, its.until());
    return;
  }
  fell_back_ |= failure != Failure::kWithdrawn && failure != Failure::kRefused;
  switch (failure) {
    case Failure::kWithdrawn:
      break;
    case Failure::kRefused:
      failures_ = 0;
      break;
    case Failure::kUnanswered:
      fail(pauses_.longest_without, now);
      break;
    case Failure::kDeclined:
      failures_ = 0;
      retry_ = now + longest();
      break;
    case Failure::kFinal:
      failures_ = 0;
      retry_ = kForever;
      break;
    case Failure::kUnreached:
      fail(longest(), now);
      break;
  }
}

void Route::unreached(std::span<const Reason> transports, Nanos now) {
  for (const auto& [transport, why] : transports)
    if (Breaker* const its = breaker(transport)) its->unreached(why, backoff_, now);
}

void Route::lost(std::string why, Nanos now) {
  if (!linked_) return;
  linked_ = false;
  awaited_ = attempted_;
  const Nanos lived = now - since_;
  Breaker* const its = breaker(transport_);
  const bool another = its && its->died(lived, std::move(why), backoff_, now);
  if (another || lived >= kSteady) {
    failures_ = 0;
    retry_ = 0;
  } else if (links_ > 1) {
    // Links keep dying young: they are not made at full speed.
    fell_back_ = true;
    fail(longest(), now);
  }
}

std::optional<Route::News> Route::news(Nanos now) {
  for (auto& [name, its] : breakers_)
    if (its.news(now)) return News{name, its.why(), its.until()};
  return std::nullopt;
}

Plan Route::plan(Nanos now) const {
  Plan plan{{}, {}, policy_};
  for (const Candidate& transport : transports_)
    if (!linked_ || is_better(transport.name)) plan.transports.push_back(transport);
  for (const auto& [name, its] : breakers_)
    if (its.open(now))
      plan.passed_over.push_back(
          {name, "passed over for a while, because its links fail: " + its.why()});
  return plan;
}

Nanos Route::pause(int failures) { return backoff_.pause(failures, pauses_.first, longest()); }

void Route::fail(Nanos longest, Nanos now) {
  retry_ = now + backoff_.pause(++failures_, pauses_.first, longest);
}

Nanos Route::longest() const { return may_fall_back_ ? pauses_.longest : pauses_.longest_without; }

Breaker* Route::breaker(std::string_view transport) {
  for (auto& [name, its] : breakers_)
    if (name == transport) return &its;
  return nullptr;
}

bool Route::is_better(std::string_view transport) const {
  for (const Candidate& known : transports_) {
    if (known.name == transport_) return false;
    if (known.name == transport) return true;
  }
  return false;
}

}  // namespace tw::route
