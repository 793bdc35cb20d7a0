// SPDX-License-Identifier: Apache-2.0
// Two ranks of a large group that come to a link, and what becomes of attempts that are given up.
#include "collective/roster.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/fd.h"
#include "collective/members.h"
#include "collective/point_to_point.h"
#include "route/choice.h"
#include "test/call/world.h"
#include "test/collective/ranks.h"

namespace tw::test {
namespace {

using collective::Members;
using collective::RankAddress;
using collective::Roster;

constexpr int kSize = 9, kLow = 3, kHigh = 6;

// A port that takes connections and says nothing.
class SilentPort {
 public:
  SilentPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(fd_.get(), 8) == 0);
    REQUIRE(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    place_ = "tcp:127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  const std::string& place() const { return place_; }

 private:
  Fd fd_;
  std::string place_;
};

// What the group knows.
constexpr wire::Nonce kKey{};

// A rank 3 that lets rank 6 in, and does not say whether it takes the link.
class MuteRank {
 public:
  MuteRank() {
    const Variable transport("TENSORWIRE_TRANSPORT", "tcp");
    auto poller = runtime().background();
    REQUIRE(poller.ok());
    entrance_.emplace(runtime(), **poller, [this, to = *poller](meet::Connected connected) {
      const auto link = make_ref<Link>(runtime(), *to, std::move(connected.transport),
                                       std::move(connected.peer), 1 << 20, Link::Role::kServer);
      link->attach<Port>(asked_);
      CHECK(link->start().ok());
      link_ = link;
    });
    auto policy = route::choose(runtime().kinds());
    REQUIRE(policy.ok());
    REQUIRE(entrance_->open(*policy, "127.0.0.1").ok());
    entrance_->admit(kHigh, runtime().hello(), collective::pass_of(kKey, kLow, kHigh));
  }
  std::string place() const { return entrance_->places()[0]; }
  bool asked() const { return asked_; }
  // After it was asked.
  void leave() {
    entrance_.reset();
    link_->close({Code::kCancelled, "this process has left"});
  }

 private:
  class Port final : public CallPort {
   public:
    Port(Link& link, std::atomic<bool>& asked) : CallPort(link), asked_(asked) {}

   private:
    Status on_request(Ref<Parcel>) override {
      asked_ = true;
      return {};
    }
    std::atomic<bool>& asked_;
  };

  std::atomic<bool> asked_{false};
  Ref<Link> link_;  // written before that
  std::optional<collective::Entrance> entrance_;
};

// Ranks 3 and 6 of 9 in one process, without the others.
class TwoRanks {
 public:
  // `low_place`: where rank 6 looks for rank 3; empty: where it is.
  explicit TwoRanks(const std::string& low_place = {}) {
    const Variable transport("TENSORWIRE_TRANSPORT", "tcp");
    auto poller = runtime().background();
    REQUIRE(poller.ok());
    for (Ref<Roster>* roster : {&low_, &high_}) {
      *roster = make_ref<Roster>(runtime(), *poller, roster == &low_ ? kLow : kHigh, kSize);
      auto policy = route::choose(runtime().kinds());
      REQUIRE(policy.ok());
      REQUIRE((*roster)->open(std::move(*policy), "127.0.0.1").ok());
    }
    const RankAddress low{runtime().hello(), runtime().instance(), low_->entrance().places()};
    high_address_ = {runtime().hello(), runtime().instance(), high_->entrance().places()};
    std::vector<RankAddress> addresses(kSize);
    addresses[kLow] = low;
    addresses[kHigh] = high_address_;
    low_->settle(kKey, addresses);
    if (!low_place.empty()) addresses[kLow].places = {low_place};
    high_->settle(kKey, addresses);
    low_members_ = std::make_unique<Members>(low_);
    high_members_ = std::make_unique<Members>(high_);
  }

  Roster& low() { return *low_; }
  Roster& high() { return *high_; }
  Members& of(int rank) { return rank == kLow ? *low_members_ : *high_members_; }

  // What rank 3 may have at rank 6's entrance: a connection that becomes no link.
  Result<meet::Connected> enter_high() {
    const Variable transport("TENSORWIRE_TRANSPORT", "tcp");
    auto policy = route::choose(runtime().kinds());
    REQUIRE(policy.ok());
    return collective::enter(runtime(), *policy, kHigh, high_address_,
                             collective::pass_of(kKey, kHigh, kLow), within(kLong));
  }
  // A message each way comes.
  void check_link() {
    std::thread other([&] { CHECK(exchange(kHigh) == ""); });
    CHECK(exchange(kLow) == "");
    other.join();
    CHECK(low_->links() == 1);
    CHECK(high_->links() == 1);
    CHECK(low_->standing().details() == "");
    CHECK(high_->standing().details() == "");
  }
  std::string exchange(int rank) {
    Members& members = of(rank);
    const int other = rank == kLow ? kHigh : kLow;
    std::byte byte{};
    OutSegment segment;
    segment.data = &byte;
    segment.size = 1;
    if (Status s = send_message(members, other, 1, {&segment, 1}, within(kLong)); !s.ok())
      return s.details();
    const auto message = next_message(members, other, 1, within(kLong));
    return message ? "" : message.status().details();
  }

 private:
  RankAddress high_address_;
  Ref<Roster> low_, high_;
  std::unique_ptr<Members> low_members_, high_members_;
};

TEST_CASE(
    "roster: an attempt that is given up is missed by nobody, and another one comes through") {
  TwoRanks ranks;
  for (int i = 0; i < 3; ++i) {
    auto connected = ranks.enter_high();
    REQUIRE_MESSAGE(connected.ok(), connected.status().details());
  }
  CHECK(ranks.high().links() == 0);
  ranks.check_link();
}

TEST_CASE("roster: waits that are too short for a connection come to one link") {
  for (int round = 0; round < 20; ++round) {
    TwoRanks ranks;
    const auto reach = [](Roster& from, int to) {
      Nanos time = kMicrosecond;
      for (;; time *= 2) {
        const auto port = from.reach(to, within(time));
        if (port) return;
        if (port.status().code() != Code::kDeadlineExceeded) {
          FAIL_CHECK(port.status().details());
          return;
        }
      }
    };
    std::thread other([&] { reach(ranks.high(), kLow); });
    reach(ranks.low(), kHigh);
    other.join();
    ranks.check_link();
  }
}

TEST_CASE("roster: an offer that is taken is used, whether a wait is there or not") {
  TwoRanks ranks;
  (void)ranks.high().reach(kLow, within(kMicrosecond));
  CHECK(eventually([&] { return ranks.high().links() == 1; }));
  ranks.check_link();
}

TEST_CASE("roster: a rank takes what comes while its own attempt gets nowhere") {
  const SilentPort silent;
  TwoRanks ranks(silent.place());
  std::atomic<bool> trying{false};
  std::thread other([&] {
    const Wait wait{kForever,
                    [](void* context) -> int {
                      *static_cast<std::atomic<bool>*>(context) = true;
                      return 0;
                    },
                    &trying};
    CHECK(ranks.high().reach(kLow, wait).ok());
  });
  while (!trying) std::this_thread::yield();
  CHECK(ranks.low().reach(kHigh, within(kLong)).ok());
  other.join();
  ranks.check_link();
}

TEST_CASE("roster: where both have asked, the higher rank's link is the one, if it comes about") {
  MuteRank mute;
  TwoRanks ranks(mute.place());
  std::thread other([&] { CHECK(ranks.high().reach(kLow, within(kLong)).ok()); });
  REQUIRE(eventually([&] { return mute.asked(); }));
  CHECK(ranks.low().reach(kHigh, within(100 * kMillisecond)).status().code() ==
        Code::kDeadlineExceeded);
  CHECK(ranks.high().links() == 0);
  mute.leave();  // so that comes to nothing
  CHECK(ranks.low().reach(kHigh, within(kLong)).ok());
  other.join();
  ranks.check_link();
}

TEST_CASE("roster: who asks a rank that has left is told, and does not wait") {
  TwoRanks ranks;
  ranks.of(kHigh).fail({Code::kCancelled, "the user had enough"});
  ranks.high().leave();
  CHECK(ranks.low().reach(kHigh, within(kLong)).status().code() == Code::kUnavailable);
}

}  // namespace
}  // namespace tw::test
