// SPDX-License-Identifier: Apache-2.0
// Ranks whose addresses are those of two hosts, as far as one can tell.
#include "collective/host_watch.h"

#include <doctest/doctest.h>

#include <array>
#include <thread>

#include "collective/point_to_point.h"
#include "test/collective/ranks.h"
#include "test/engine/patience.h"

namespace tw::test {
namespace {

using collective::Members;

// The first rank listens at an address from which no connection comes.
template <class Run>
void as_two_hosts(Run&& run) {
  const Variable transport("TENSORWIRE_TRANSPORT", "tcp");
  MemoryStore store;
  std::array<std::thread, 2> threads;
  std::array<std::string, 2> failures;
  for (int rank = 0; rank < 2; ++rank)
    threads[static_cast<size_t>(rank)] = std::thread([&, rank] {
      auto group = Group::make(store, {rank, 2, "127.0.0.2"}, within(kLong));
      failures[static_cast<size_t>(rank)] =
          group ? run((*group)->members()) : group.status().details();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure == "");
}

Status say(Members& members, int rank, uint64_t tag) {
  std::byte byte{};
  OutSegment segment;
  segment.data = &byte;
  segment.size = 1;
  return send_message(members, rank, tag, {&segment, 1}, within(kLong));
}

TEST_CASE("hosts: ranks that wait for long ask each other's host, and go on") {
  as_two_hosts([](Members& members) -> std::string {
    const int other = 1 - members.rank();
    if (!members.link(other).host_answer()) return "nothing is known of the host";
    if (members.rank() == 0) {
      // Longer than a host may be silent.
      const auto none = next_message(members, other, 1, within(3 * kSecond / 2));
      if (none) return "a message has come";
      if (none.status().code() != Code::kDeadlineExceeded) return none.status().details();
      if (Status status = say(members, other, 2); !status.ok()) return status.details();
      const auto message = next_message(members, other, 1, within(kLong));
      return message ? std::string() : message.status().details();
    }
    const auto message = next_message(members, other, 2, within(kLong));
    if (!message) return message.status().details();
    return say(members, other, 1).details();
  });
}

TEST_CASE("hosts: a rank whose host is silent is gone, and the others are told why") {
  const Audit& audit = Runtime::get().value()->audit();
  const auto before = audit.count(Incident::kHostSilent);
  as_two_hosts([&](Members& members) -> std::string {
    const int other = 1 - members.rank();
    // A link that is lost while the other end still joins fails that.
    if (members.rank() == 1) {
      if (Status status = say(members, other, 3); !status.ok()) return status.details();
    } else {
      const auto joined = next_message(members, other, 3, within(kLong));
      if (!joined) return joined.status().details();
      members.link(other).lose_host();
    }
    const auto none = next_message(members, other, 1, within(kLong));
    if (none) return "a message has come";
    const Status& why = none.status();
    if (why.code() != Code::kUnavailable) return why.details();
    const bool named = why.details().find(members.rank() == 0 ? "rank 1 (ipv4:127.0.0.1:"
                                                              : "rank 0 (ipv4:127.0.0.2:") == 0;
    const bool said =
        members.rank() != 0 || why.details().find("answers nothing any more") != std::string::npos;
    const bool noted = members.rank() != 0 || audit.count(Incident::kHostSilent) > before;
    return !noted ? "the audit trail has nothing of it" : named && said ? "" : why.details();
  });
}

}  // namespace
}  // namespace tw::test
