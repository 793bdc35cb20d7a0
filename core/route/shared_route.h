// SPDX-License-Identifier: Apache-2.0
// A route that threads share, with a clock that is handed in. No lock is held while an attempt
// goes on, which takes as long as connecting does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "route/attempt.h"
#include "route/route.h"

namespace tw::route {

// All times that it tells are the clock's; left() says how far away they are.
class SharedRoute {
 public:
  using Clock = std::function<Nanos()>;

  SharedRoute(std::vector<Candidate> transports, Policy policy, std::string_view fallback,
              uint32_t seed, const Pauses& pauses, Clock clock);
  // With a seed of its own, so that routes do not pause in step. UNAVAILABLE, see fill_random().
  static Result<std::unique_ptr<SharedRoute>> make(std::vector<Candidate> transports, Policy policy,
                                                   std::string_view fallback, const Pauses& pauses,
                                                   Clock clock);

  // As of a Route.
  Route::Advice consult();
  void linked(std::string_view transport);
  void failed(Route::Failure failure);
  // Where memory is short, the link is lost without its reason.
  void lost(std::string_view why);
  Nanos better_from() const;
  int failures() const;
  Nanos pause(int failures);
  std::optional<Route::News> news();

  // Makes the attempt that consult() has told to make; the transports that were tried in vain count
  // as unreached. What came of it is for linked() or failed() to say.
  AttemptResult attempt(const Offer& offer, const WhyNot& why_not, const Connect& connect);

  // 0: the time has come; kForever: it never will.
  Nanos left(Nanos until) const;

 private:
  const Clock clock_;
  mutable Mutex mutex_;
  Route route_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::route
