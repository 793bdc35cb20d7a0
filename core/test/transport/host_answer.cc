// SPDX-License-Identifier: Apache-2.0
// What TCP tells of the host at its other end, whose process does nothing.
#include "transport/tcp/host_answer.h"

#include "test/transport/pair.h"

namespace tw::test {
namespace {

// Ends with two addresses, as those of two hosts have, though it is one.
TransportPair pair_of_addresses() {
  auto [client, server] = tcp_sockets(INADDR_LOOPBACK + 1);
  auto a = TcpTransport::create(std::move(client), false, {});
  auto b = TcpTransport::create(std::move(server), false, {});
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  return {std::move(*a), std::move(*b)};
}

TEST_CASE("host answer: links within a host, and transports that know better, tell nothing") {
  CHECK_FALSE(Tcp::make().a->host_answer());
  CHECK_FALSE(Shm::make().a->host_answer());
  CHECK_FALSE(Loop::make().a->host_answer());
}

TEST_CASE("host answer: what the peer's process does not read is acknowledged all the same") {
  TransportPair pair = pair_of_addresses();
  for (uint64_t at = 0; at < 3; ++at) {
    REQUIRE(send_pattern(*pair.a, at, 1) == 1);
    CHECK(eventually([&] { return !pair.a->host_answer()->due; }));
    CHECK(pair.a->host_answer()->room);
  }
  CHECK(receive_pattern(*pair.b, 0, 8) == 3);
}

TEST_CASE("host answer: a peer whose buffers are full owes nothing, and has no room") {
  TransportPair pair = pair_of_addresses();
  uint64_t sent = fill(*pair.a);
  CHECK(eventually([&] {
    sent += send_pattern(*pair.a, sent, 8192);
    const HostAnswer answer = *pair.a->host_answer();
    return !answer.due && !answer.room && answer.waits;
  }));
  uint64_t received = 0;
  CHECK(eventually([&] {
    received += receive_pattern(*pair.b, received, 1 << 20);
    return received == sent;
  }));
  CHECK(eventually([&] {
    const HostAnswer answer = *pair.a->host_answer();
    return answer.room && !answer.due && !answer.waits;
  }));
}

}  // namespace
}  // namespace tw::test
