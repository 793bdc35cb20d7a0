// SPDX-License-Identifier: Apache-2.0
#include "route/shared_route.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/random.h"
#include "base/shortage.h"

namespace tw::route {

SharedRoute::SharedRoute(std::vector<Candidate> transports, Policy policy,
                         std::string_view fallback, uint32_t seed, const Pauses& pauses,
                         Clock clock)
    : clock_(std::move(clock)),
      route_(std::move(transports), std::move(policy), fallback, seed, pauses) {}

Result<std::unique_ptr<SharedRoute>> SharedRoute::make(std::vector<Candidate> transports,
                                                       Policy policy, std::string_view fallback,
                                                       const Pauses& pauses, Clock clock) {
  uint32_t seed;
  if (Status random = fill_random({reinterpret_cast<uint8_t*>(&seed), sizeof seed}); !random.ok())
    return random;
  return std::make_unique<SharedRoute>(std::move(transports), std::move(policy), fallback, seed,
                                       pauses, std::move(clock));
}

Route::Advice SharedRoute::consult() {
  const MutexLock lock(mutex_);
  return route_.consult(clock_());
}

void SharedRoute::linked(std::string_view transport) {
  const MutexLock lock(mutex_);
  route_.linked(transport, clock_());
}

void SharedRoute::failed(Route::Failure failure) {
  const MutexLock lock(mutex_);
  route_.failed(failure, clock_());
}

void SharedRoute::lost(std::string_view why) {
  std::string kept;
  (void)has_memory_for([&] { kept = why; });
  const MutexLock lock(mutex_);
  route_.lost(std::move(kept), clock_());
}

Nanos SharedRoute::better_from() const {
  const MutexLock lock(mutex_);
  return route_.better_from();
}

int SharedRoute::failures() const {
  const MutexLock lock(mutex_);
  return route_.failures();
}

Nanos SharedRoute::pause(int failures) {
  const MutexLock lock(mutex_);
  return route_.pause(failures);
}

std::optional<Route::News> SharedRoute::news() {
  const MutexLock lock(mutex_);
  return route_.news(clock_());
}

AttemptResult SharedRoute::attempt(const Offer& offer, const WhyNot& why_not,
                                   const Connect& connect) {
  Plan plan;
  {
    const MutexLock lock(mutex_);
    plan = route_.plan(clock_());
  }
  AttemptResult found = route::attempt(plan, offer, why_not, connect);
  const MutexLock lock(mutex_);
  route_.unreached(found.unreached, clock_());
  return found;
}

Nanos SharedRoute::left(Nanos until) const {
  if (until == kForever || until <= 0) return std::max<Nanos>(0, until);
  return std::max<Nanos>(0, until - clock_());
}

}  // namespace tw::route
