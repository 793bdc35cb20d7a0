// SPDX-License-Identifier: Apache-2.0
// What a decorator adds to the transport below it; conformance.cc has it beside the others.
#include <doctest/doctest.h>

#include <array>
#include <utility>

#include "test/transport/pair.h"

namespace tw::test {
namespace {

TEST_CASE("sealed: who reads the transport below sees other bytes") {
  auto wires = LoopWires::create();
  REQUIRE(wires.ok());
  const Settings settings;
  LoopTransport listener(*wires, 1, settings);
  SealedTransport sender(std::make_unique<LoopTransport>(*wires, 0, settings), SealKey{1},
                         SealKey{2});
  REQUIRE(send_pattern(sender, 0, 1000) == 1000);
  std::array<std::byte, 1000> got;
  const iovec room = run_of(got.data(), got.size());
  REQUIRE(*listener.receive({&room, 1}) == got.size());
  size_t same = 0;
  for (size_t i = 0; i < got.size(); ++i) same += got[i] == pattern(i);
  CHECK(same < got.size() / 10);
}

TEST_CASE("sealed: a peer that leaves before it has told its key is missed") {
  Sealed::Joining joining;
  const auto begun = joining.step(0);
  REQUIRE(begun.ok());
  CHECK(*begun == Setup::Next::kRead);
  joining.sockets[1].reset();
  CHECK(joining.step(0).status().code() == Code::kUnavailable);
}

TEST_CASE("sealed: why the set-up below fails is told") {
  Sealed::Joining client, server;  // of two links: neither has the other's wires
  REQUIRE(client.step(0).ok());
  std::swap(client.sockets[1], server.sockets[1]);
  client.setups[0].reset();  // takes its wires along
  CHECK(server.setups[1]->go_on(server.sockets[1].get()).status().code() ==
        Code::kFailedPrecondition);
}

}  // namespace
}  // namespace tw::test
