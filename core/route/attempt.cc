// SPDX-License-Identifier: Apache-2.0
#include "route/attempt.h"

#include <algorithm>
#include <utility>

namespace tw::route {
namespace {

bool is_of(std::string_view address, std::string_view transport) {
  return address.size() > transport.size() && address.starts_with(transport) &&
         address[transport.size()] == ':';
}

// Why the transport is not even tried; empty: it is. `now`: another time it might be.
std::string obstacle(const Candidate& transport, const Plan& plan, const Offer& offer,
                     const WhyNot& why_not, bool& now) {
  now = false;
  if (std::string refusal = plan.policy.refusal(transport.name); !refusal.empty()) return refusal;
  if (const Status here = why_not(transport.name); !here.ok()) return here.details();
  const bool offered = std::ranges::any_of(
      offer.addresses, [&](const std::string& address) { return is_of(address, transport.name); });
  if (transport.local && !offer.same_host)
    return "the server runs on another host, or under another kernel";
  if (transport.local && !offer.same_user)
    return "the server runs as another user: start both as one, containers with the same --user";
  if (!offered) return "the server does not offer it";
  const auto passed = std::ranges::find(plan.passed_over, transport.name, &Reason::transport);
  if (passed == plan.passed_over.end()) return {};
  now = true;
  return passed->why;
}

}  // namespace

std::vector<Candidate> candidates(std::span<const std::unique_ptr<Kind>> kinds) {
  std::vector<Candidate> out;
  for (const auto& kind : kinds)
    if (kind->chosen())
      out.push_back(
          {std::string(kind->name()), kind->socket() == Kind::Socket::kUnix, kind->fragile()});
  return out;
}

WhyNot asked_of(std::span<const std::unique_ptr<Kind>> kinds) {
  return [kinds](std::string_view transport) {
    return (*std::ranges::find(kinds, transport, &Kind::name))->why_not();
  };
}

bool AttemptResult::tried(std::string_view name) const {
  return std::ranges::find(unreached, name, &Reason::transport) != unreached.end();
}

Code AttemptResult::code() const {
  if (!transport.empty()) return Code::kOk;
  return final ? Code::kFailedPrecondition : Code::kUnavailable;
}

AttemptResult attempt(const Plan& plan, const Offer& offer, const WhyNot& why_not,
                      const Connect& connect) {
  AttemptResult found;
  for (const Candidate& transport : plan.transports) {
    bool only_now;
    std::string why = obstacle(transport, plan, offer, why_not, only_now);
    if (!why.empty()) {
      found.reasons.push_back({transport.name, std::move(why)});
      found.final &= !only_now;
      continue;
    }
    for (const std::string& address : offer.addresses) {
      if (!is_of(address, transport.name)) continue;
      const Status failed = connect(transport.name, address);
      if (failed.ok()) {
        found.transport = transport.name;
        return found;
      }
      found.final &= failed.code() == Code::kFailedPrecondition;
      if (!why.empty()) why += ", ";
      why += address + ": " + failed.details();
    }
    found.reasons.push_back({transport.name, why});
    found.unreached.push_back({transport.name, std::move(why)});
  }
  return found;
}

}  // namespace tw::route
