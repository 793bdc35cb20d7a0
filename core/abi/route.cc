// SPDX-License-Identifier: Apache-2.0
// The C ABI: routes.
#include "route/route.h"

#include "abi/abi.h"
#include "base/mutex.h"
#include "base/random.h"
#include "process/all_settings.h"

using namespace tw;
using namespace tw::abi;

struct tw_route {
  tw_route(std::vector<route::Candidate> transports, route::Policy policy, uint32_t seed,
           const route::Pauses& pauses)
      : route(std::move(transports), std::move(policy), kStock, seed, pauses) {}

  Mutex mutex;
  route::Route route TW_GUARDED_BY(mutex);
};

namespace {

using Use = route::Route::Use;
using Failure = route::Route::Failure;

static_assert(TW_USE_LINK == static_cast<int>(Use::kLink) &&
              TW_USE_ATTEMPT == static_cast<int>(Use::kAttempt) &&
              TW_USE_FALLBACK == static_cast<int>(Use::kFallback) &&
              TW_USE_NOTHING == static_cast<int>(Use::kNothing));
static_assert(TW_ATTEMPT_WITHDRAWN == static_cast<int>(Failure::kWithdrawn) &&
              TW_ATTEMPT_REFUSED == static_cast<int>(Failure::kRefused) &&
              TW_ATTEMPT_UNANSWERED == static_cast<int>(Failure::kUnanswered) &&
              TW_ATTEMPT_DECLINED == static_cast<int>(Failure::kDeclined) &&
              TW_ATTEMPT_FINAL == static_cast<int>(Failure::kFinal) &&
              TW_ATTEMPT_UNREACHED == static_cast<int>(Failure::kUnreached));

// What a callback has said.
Status status_of(int result, const tw_status& why) {
  return result == TW_OK ? Status{} : Status{code_of(result), why.details};
}

int64_t left(Nanos until, Nanos now) {
  return until == kForever ? kForever : std::max<Nanos>(0, until - now);
}

}  // namespace

int tw_route_create(const tw_policy* policy, const tw_pauses* pauses, tw_route** out,
                    tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  route::Policy permitted;
  if (policy->required) permitted.required = policy->required;
  if (policy->origin) permitted.origin = policy->origin;
  permitted.forbidden.assign(policy->forbidden, policy->forbidden + policy->count);
  uint32_t seed;
  if (Status random = fill_random({reinterpret_cast<uint8_t*>(&seed), sizeof seed}); !random.ok())
    return report(status, random);
  route::Pauses usual;
  if (pauses)
    usual = {pauses->first, pauses->longest, pauses->longest_without, pauses->first_of_breaker,
             pauses->longest_of_breaker};
  *out = new tw_route(route::candidates((*runtime)->kinds()), std::move(permitted), seed, usual);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_route_release(tw_route* route) { delete route; }

tw_advice tw_route_consult(tw_route* route) {
  const Nanos time = now();
  const MutexLock lock(route->mutex);
  const auto advice = route->route.consult(time);
  return {static_cast<int32_t>(advice.use), advice.begin, left(advice.retry, time)};
}

int64_t tw_route_pause(tw_route* route, int failures) {
  const MutexLock lock(route->mutex);
  return route->route.pause(failures);
}

int tw_route_attempt(tw_route* route, const tw_offer* offer, tw_route_lacks lacks,
                     tw_route_connect connect, tw_visit_reason visit, void* context,
                     tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  const route::Offer offered{offer->same_host != 0,
                             offer->same_user != 0,
                             {offer->addresses, offer->addresses + offer->count}};
  route::Plan plan;
  {
    const MutexLock lock(route->mutex);
    plan = route->route.plan(now());
  }
  const route::AttemptResult found = route::attempt(
      plan, offered,
      [&](std::string_view transport) {
        if (!lacks) return (*runtime)->kind(transport)->why_not();
        tw_status why{};
        return status_of(lacks(context, std::string(transport).c_str(), &why), why);
      },
      [&](std::string_view transport, const std::string& address) {
        tw_status why{};
        return status_of(connect(context, std::string(transport).c_str(), address.c_str(), &why),
                         why);
      });
  {
    const MutexLock lock(route->mutex);
    route->route.unreached(found.unreached, now());
  }
  for (const route::Reason& reason : found.reasons) {
    const bool tried = std::ranges::find(found.unreached, reason.transport,
                                         &route::Reason::transport) != found.unreached.end();
    visit(context, reason.transport.c_str(), reason.why.c_str(), tried);
  }
  if (!found.transport.empty()) return TW_OK;
  return report(status, found.final ? Code::kFailedPrecondition : Code::kUnavailable,
                "no transport that is permitted reaches the peer");
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_route_linked(tw_route* route, const char* transport) {
  const MutexLock lock(route->mutex);
  route->route.linked(transport, now());
}

int tw_route_failed(tw_route* route, int32_t failure) {
  if (failure < TW_ATTEMPT_WITHDRAWN || failure > TW_ATTEMPT_UNREACHED) return 0;
  const MutexLock lock(route->mutex);
  route->route.failed(static_cast<Failure>(failure), now());
  return 1;
}

void tw_route_lost(tw_route* route, const char* why) {
  std::string kept;
  try {
    kept = why;
  } catch (const std::bad_alloc&) {
    const Shortage shortage;  // it is lost without its reason
  }
  const MutexLock lock(route->mutex);
  route->route.lost(std::move(kept), now());
}

int tw_route_failures(tw_route* route) {
  const MutexLock lock(route->mutex);
  return route->route.failures();
}

int64_t tw_route_better_in(tw_route* route) {
  const MutexLock lock(route->mutex);
  return left(route->route.better_from(), now());
}

int tw_route_news(tw_route* route, tw_passed_over* out) try {
  const Nanos time = now();
  const MutexLock lock(route->mutex);
  const auto news = route->route.news(time);
  if (!news) return 0;
  copy_text(out->transport, news->transport);
  copy_text(out->why, news->why);
  out->left_ns = left(news->until, time);
  return 1;
} catch (const std::bad_alloc&) {
  return none<int>();
}
