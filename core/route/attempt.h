// SPDX-License-Identifier: Apache-2.0
// One attempt to reach a peer that has told what it offers: best transport first.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "route/policy.h"
#include "transport/kind.h"

namespace tw::route {

// What a route knows of a transport.
struct Candidate {
  std::string name;
  bool local = false;    // for processes of one user on one host
  bool fragile = false;  // depends on more than the two processes
};

// Those of the kinds that are chosen among, best first.
std::vector<Candidate> candidates(std::span<const std::unique_ptr<Kind>> kinds);

// Why a transport is not the one.
struct Reason {
  std::string transport, why;
};

// What a peer offers.
struct Offer {
  bool same_host = false, same_user = false;
  std::vector<std::string> addresses;  // <transport>:<where>
};

struct Plan {
  std::vector<Candidate> transports;  // those that would do, best first
  std::vector<Reason> passed_over;    // of these, for now
  Policy policy;
};

struct AttemptResult {
  std::string transport;          // of the link; empty: none was made
  std::vector<Reason> reasons;    // for each better one
  std::vector<Reason> unreached;  // of these, those that were tried
  bool final = true;              // another attempt would come to the same

  // Whether connecting by this transport has failed.
  bool tried(std::string_view transport) const;
  // UNAVAILABLE; FAILED_PRECONDITION: it is final.
  Code code() const;
};

// What a transport lacks on this host; ok: nothing.
using WhyNot = std::function<Status(std::string_view transport)>;
// As these say themselves, which have all that a plan names.
WhyNot asked_of(std::span<const std::unique_ptr<Kind>> kinds);
// Connects to an address of the peer's. FAILED_PRECONDITION: the next time would come to the same.
using Connect = std::function<Status(std::string_view transport, const std::string& address)>;

// Takes as long as `connect` does.
AttemptResult attempt(const Plan& plan, const Offer& offer, const WhyNot& why_not,
                      const Connect& connect);

}  // namespace tw::route
