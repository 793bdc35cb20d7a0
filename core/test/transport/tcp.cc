// SPDX-License-Identifier: Apache-2.0
// What TCP alone has to see to.
#include "test/base/child.h"
#include "test/transport/pair.h"

namespace tw::test {
namespace {

TEST_CASE("tcp: the peer sees that this end has gone, whatever children of its process live") {
  TransportPair pair = Tcp::make();
  const Child child;
  Watched watched(*pair.b);
  pair.a.reset();
  pair.b->arm(false);
  REQUIRE(watched.wait());
  std::byte byte;
  const iovec room = run_of(&byte, 1);
  const auto got = pair.b->receive({&room, 1});
  REQUIRE_FALSE(got.ok());
  CHECK(got.status().code() == Code::kUnavailable);
}

TEST_CASE("tcp: a control of congestion that the kernel refuses becomes one that it has") {
  tcp::Settings settings;
  settings.congestion = "no-such";
  CHECK(same_host_congestion(settings) == "reno");
  CHECK_FALSE(Tcp::make(settings).a->host_answer());  // it is a transport all the same
}

}  // namespace
}  // namespace tw::test
