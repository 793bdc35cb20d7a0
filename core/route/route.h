// SPDX-License-Identifier: Apache-2.0
// The way to one peer: whether what goes there takes a link, waits for one, or takes the fallback
// (gRPC), and when the next link is attempted.
//
//   [no link] --consult: begin--> [attempt] --linked--> [link] --lost--> [no link]
//                                     |                    |
//                                  failed               consult: begin, once a better transport
//                                     v                    v           may be had: the link stays
//                                 [no link]            [link, attempt]
//
// Who needs the way consults the route. One of those is told to begin an attempt: it asks the peer
// for an invitation, goes through what that offers (attempt), and says what came of it. Others wait
// for the first attempt, and for the first one after a good link was lost; while later attempts
// run, they take the fallback, if there is one.
//
// Transports that depend on more than the two processes have a circuit breaker each: where their
// links keep failing, the next best way is taken for a while.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "route/attempt.h"
#include "route/backoff.h"
#include "route/breaker.h"
#include "route/policy.h"

namespace tw::route {

struct Pauses {
  Nanos first = kSecond / 4;
  Nanos longest = 30 * kSecond;
  // A peer's return is noticed so soon where nothing else reaches it meanwhile, and where it does
  // not answer, so that asking costs little.
  Nanos longest_without = kSecond;
  // Of a transport whose links fail.
  Nanos first_of_breaker = Breaker::kFirstPause;
  Nanos longest_of_breaker = Breaker::kLongestPause;
};

// Without I/O, and without a clock: `now` is handed in. Its owner holds a lock.
class Route {
 public:
  // A link that lived so long starts the back-off from the beginning.
  static constexpr Nanos kSteady = 5 * kSecond;

  // transports: best first. fallback: its name in `policy`.
  Route(std::vector<Candidate> transports, Policy policy, std::string_view fallback, uint32_t seed,
        const Pauses& pauses = {});

  const Policy& policy() const { return policy_; }

  // ---- for whoever needs the way ----

  enum class Use : uint8_t {
    kLink,
    kAttempt,  // somebody makes one: its end is worth waiting for
    kFallback,
    kNothing,  // there is no way before `retry`
  };
  struct Advice {
    Use use;
    bool begin = false;  // nobody makes an attempt, and it is time for one: make it
    Nanos retry = 0;     // kFallback, kNothing: when the next attempt may begin
  };
  Advice consult(Nanos now);

  // ---- what came of an attempt ----

  // A link was made; so it was if another one was found without an attempt.
  void linked(std::string_view transport, Nanos now);
  enum class Failure : uint8_t {
    kWithdrawn,   // it was not made: the next one may begin at once
    kRefused,     // the peer refused who asked, and may take others
    kUnanswered,  // the peer did not answer
    kDeclined,    // it answered that there can be no link, as things are there
    kFinal,       // no other attempt is worth making
    kUnreached,   // no link could be made
  };
  void failed(Failure failure, Nanos now);
  // The transports that the attempt could not reach.
  void unreached(std::span<const Reason> transports, Nanos now);
  // The link has ended.
  void lost(std::string why, Nanos now);

  // ---- better transports ----

  // When a better transport than the link's may be had; kForever: it is the best, or none is.
  Nanos better_from() const { return linked_ ? better_from_ : kForever; }
  const std::string& transport() const { return transport_; }
  int failures() const { return failures_; }
  // How long to wait after so many failures in a row that the owner counts.
  Nanos pause(int failures);
  // A transport that is passed over from now on, and until when; once for each time.
  struct News {
    std::string transport, why;
    Nanos until;
  };
  std::optional<News> news(Nanos now);

  // For an attempt: the transports that are better than the present link's.
  Plan plan(Nanos now) const;

 private:
  void fail(Nanos longest, Nanos now);
  Nanos longest() const;
  Breaker* breaker(std::string_view transport);      // null: it has none
  bool is_better(std::string_view transport) const;  // than the link's

  const std::vector<Candidate> transports_;
  const Policy policy_;
  const bool may_fall_back_;
  const Pauses pauses_;
  Backoff backoff_;
  std::vector<std::pair<std::string, Breaker>> breakers_;  // of the fragile, best first
  bool linked_ = false;
  bool attempted_ = false;  // somebody makes one
  bool awaited_ = false;    // the attempt's end is worth waiting for
  bool fell_back_ = false;  // so that no later attempt is, before there is a link
  std::string transport_;   // of the link
  Nanos since_ = 0;         // the link's
  Nanos better_from_ = kForever;
  Nanos retry_ = 0;
  int links_ = 0;
  int failures_ = 0;  // attempts in a row
};

}  // namespace tw::route
