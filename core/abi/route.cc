// SPDX-License-Identifier: Apache-2.0
// The C ABI: routes.
#include "abi/abi.h"
#include "process/all_settings.h"
#include "route/shared_route.h"

using namespace tw;
using namespace tw::abi;
using route::SharedRoute;

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

SharedRoute* of(tw_route* route) { return reinterpret_cast<SharedRoute*>(route); }

}  // namespace

int tw_route_create(const tw_policy* policy, const tw_pauses* pauses, tw_route** out,
                    tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  route::Policy permitted;
  if (policy->required) permitted.required = policy->required;
  if (policy->origin) permitted.origin = policy->origin;
  permitted.forbidden.assign(policy->forbidden, policy->forbidden + policy->count);
  route::Pauses usual;
  if (pauses)
    usual = {pauses->first, pauses->longest, pauses->longest_without, pauses->first_of_breaker,
             pauses->longest_of_breaker};
  auto made = SharedRoute::make(route::candidates((*runtime)->kinds()), std::move(permitted),
                                kStock, usual, now);
  if (!made) return report(status, made.status());
  *out = reinterpret_cast<tw_route*>(made->release());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_route_release(tw_route* route) { delete of(route); }

tw_advice tw_route_consult(tw_route* route) {
  const auto advice = of(route)->consult();
  return {static_cast<int32_t>(advice.use), advice.begin, of(route)->left(advice.retry)};
}

int64_t tw_route_pause(tw_route* route, int failures) { return of(route)->pause(failures); }

int tw_route_attempt(tw_route* route, const tw_offer* offer, tw_route_lacks lacks,
                     tw_route_connect connect, tw_visit_reason visit, void* context,
                     tw_status* status) try {
  auto runtime = Runtime::get();
  if (!runtime) return report(status, runtime.status());
  const route::Offer offered{offer->same_host != 0,
                             offer->same_user != 0,
                             {offer->addresses, offer->addresses + offer->count}};
  route::WhyNot why_not = route::asked_of((*runtime)->kinds());
  if (lacks)
    why_not = [&](std::string_view transport) {
      tw_status why{};
      return status_of(lacks(context, std::string(transport).c_str(), &why), why);
    };
  const route::AttemptResult found = of(route)->attempt(
      offered, why_not, [&](std::string_view transport, const std::string& address) {
        tw_status why{};
        return status_of(connect(context, std::string(transport).c_str(), address.c_str(), &why),
                         why);
      });
  for (const route::Reason& reason : found.reasons)
    visit(context, reason.transport.c_str(), reason.why.c_str(), found.tried(reason.transport));
  if (found.code() == Code::kOk) return TW_OK;
  return report(status, found.code(), "no transport that is permitted reaches the peer");
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_route_linked(tw_route* route, const char* transport) { of(route)->linked(transport); }

int tw_route_failed(tw_route* route, int32_t failure) {
  if (failure < TW_ATTEMPT_WITHDRAWN || failure > TW_ATTEMPT_UNREACHED) return 0;
  of(route)->failed(static_cast<Failure>(failure));
  return 1;
}

void tw_route_lost(tw_route* route, const char* why) { of(route)->lost(why); }

int tw_route_failures(tw_route* route) { return of(route)->failures(); }

int64_t tw_route_better_in(tw_route* route) { return of(route)->left(of(route)->better_from()); }

int tw_route_news(tw_route* route, tw_passed_over* out) try {
  const auto news = of(route)->news();
  if (!news) return 0;
  copy_text(out->transport, news->transport);
  copy_text(out->why, news->why);
  out->left_ns = of(route)->left(news->until);
  return 1;
} catch (const std::bad_alloc&) {
  return none<int>();
}
