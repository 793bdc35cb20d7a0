// SPDX-License-Identifier: Apache-2.0
#include "route/attempt.h"

#include <doctest/doctest.h>

#include <map>

#include "test/route/candidates.h"

namespace tw::route {
namespace {

// What happens to who connects, by address; an address that is not there is reached.
struct Reach {
  std::map<std::string, Status> failures;
  std::map<std::string, Status> lacking;
  std::vector<std::string> tried;

  AttemptResult attempt(const Offer& offer, Policy policy = {},
                        std::vector<Reason> passed_over = {},
                        std::vector<Candidate> transports = kCandidates) {
    return route::attempt(
        {std::move(transports), std::move(passed_over), std::move(policy)}, offer,
        [this](std::string_view transport) {
          const auto at = lacking.find(std::string(transport));
          return at == lacking.end() ? Status() : at->second;
        },
        [this](std::string_view transport, const std::string& address) {
          CHECK(address.starts_with(std::string(transport) + ":"));
          tried.push_back(address);
          const auto at = failures.find(address);
          return at == failures.end() ? Status() : at->second;
        });
  }
};

const Offer kOffered = {true, true, {"plain:h:1", "near:/s", "fast:h:1", "plain:h:2"}};

std::string told(const std::vector<Reason>& reasons) {
  std::string out;
  for (const auto& [transport, why] : reasons) out += transport + ": " + why + "\n";
  return out;
}

TEST_CASE("attempt: the best transport is taken, whatever the order of the offer") {
  Reach reach;
  const AttemptResult found = reach.attempt(kOffered);
  CHECK(found.transport == "near");
  CHECK(found.reasons.empty());
  CHECK(reach.tried == std::vector<std::string>{"near:/s"});
}

TEST_CASE("attempt: why each better transport is not the one") {
  Reach reach;
  Offer offer = kOffered;
  SUBCASE("another host") {
    offer.same_host = false;
    const AttemptResult found = reach.attempt(offer);
    CHECK(found.transport == "fast");
    CHECK(told(found.reasons) ==
          "near: the server runs on another host, or under another kernel\n");
    CHECK(found.unreached.empty());
  }
  SUBCASE("another user") {
    offer.same_user = false;
    CHECK(told(reach.attempt(offer).reasons) ==
          "near: the server runs as another user: start both as one, containers with the same "
          "--user\n");
  }
  SUBCASE("not offered; a name that begins with another one's is another one") {
    offer.addresses = {"nearer:/s", "near", "fast:h:1"};
    const AttemptResult found = reach.attempt(offer);
    CHECK(found.transport == "fast");
    CHECK(told(found.reasons) == "near: the server does not offer it\n");
  }
  SUBCASE("forbidden, and missing here") {
    reach.lacking["fast"] = {Code::kFailedPrecondition, "there is no device"};
    const AttemptResult found = reach.attempt(offer, {"", {"near"}, ""});
    CHECK(found.transport == "plain");
    CHECK(told(found.reasons) == "near: forbidden\nfast: there is no device\n");
  }
  SUBCASE("passed over") {
    const AttemptResult found =
        reach.attempt(offer, {"", {"near"}, ""}, {{"fast", "its links fail"}});
    CHECK(found.transport == "plain");
    CHECK(told(found.reasons) == "near: forbidden\nfast: its links fail\n");
    CHECK(found.unreached.empty());
  }
  SUBCASE("tried in vain") {
    reach.failures["near:/s"] = {Code::kUnavailable, "refused"};
    const AttemptResult found = reach.attempt(offer);
    CHECK(found.transport == "fast");
    CHECK(told(found.reasons) == "near: near:/s: refused\n");
    CHECK(told(found.unreached) == told(found.reasons));
    CHECK(found.tried("near"));
    CHECK_FALSE(found.tried("fast"));
    CHECK(found.code() == Code::kOk);
  }
}

TEST_CASE("attempt: all addresses of a transport are tried") {
  Reach reach;
  reach.failures["plain:h:1"] = {Code::kUnavailable, "no route"};
  SUBCASE("until one is reached") {
    const AttemptResult found = reach.attempt(kOffered, {"plain", {}, "a test"});
    CHECK(found.transport == "plain");
    CHECK(told(found.reasons) ==
          "near: plain is required by a test\n"
          "fast: plain is required by a test\n");
  }
  SUBCASE("and each says why not") {
    reach.failures["plain:h:2"] = {Code::kDeadlineExceeded, "no answer"};
    const AttemptResult found = reach.attempt(kOffered, {"plain", {}, "a test"});
    CHECK(found.transport.empty());
    CHECK(told(found.unreached) == "plain: plain:h:1: no route, plain:h:2: no answer\n");
    CHECK_FALSE(found.final);
    CHECK(found.code() == Code::kUnavailable);
  }
}

TEST_CASE("attempt: it is final when nothing would go otherwise another time") {
  Reach reach;
  const Policy only_fast = {"fast", {}, "a test"};
  SUBCASE("nothing is offered") {
    const AttemptResult found = reach.attempt({true, true, {}});
    CHECK(found.final);
    CHECK(found.code() == Code::kFailedPrecondition);
  }
  SUBCASE("the two cannot be joined") {
    reach.failures["fast:h:1"] = {Code::kFailedPrecondition, "other versions"};
    CHECK(reach.attempt(kOffered, only_fast).final);
  }
  SUBCASE("a peer may be away") {
    reach.failures["fast:h:1"] = {Code::kUnavailable, "refused"};
    CHECK_FALSE(reach.attempt(kOffered, only_fast).final);
  }
  SUBCASE("a transport is passed over for now") {
    CHECK_FALSE(reach.attempt(kOffered, only_fast, {{"fast", "its links fail"}}).final);
  }
}

TEST_CASE("attempt: only what is better than the present link is tried") {
  Reach reach;
  reach.failures["near:/s"] = {Code::kUnavailable, "refused"};
  const AttemptResult found = reach.attempt(kOffered, {}, {}, {kCandidates[0]});
  CHECK(found.transport.empty());
  CHECK(reach.tried == std::vector<std::string>{"near:/s"});
}

// A kind that a host has, or lacks.
class Known final : public Kind {
 public:
  Known(std::string_view name, Status lacks) : name_(name), lacks_(std::move(lacks)) {}
  std::string_view name() const override { return name_; }
  uint16_t code() const override { return 0; }
  Socket socket() const override { return Socket::kTcp; }
  Status why_not() override { return lacks_; }
  Result<std::unique_ptr<Setup>> offer(const Meeting&) override { return lacks_; }
  Result<std::unique_ptr<Setup>> accept(const Meeting&) override { return lacks_; }

 private:
  const std::string_view name_;
  const Status lacks_;
};

TEST_CASE("attempt: the kinds are asked what they lack here") {
  std::vector<std::unique_ptr<Kind>> kinds;
  kinds.push_back(std::make_unique<Known>("near", Status{Code::kUnavailable, "no memory file"}));
  kinds.push_back(std::make_unique<Known>("plain", Status()));
  const WhyNot why_not = asked_of(kinds);
  CHECK(why_not("near").details() == "no memory file");
  CHECK(why_not("plain").ok());
}

}  // namespace
}  // namespace tw::route
