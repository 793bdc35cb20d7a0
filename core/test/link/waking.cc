// SPDX-License-Identifier: Apache-2.0
// A driver that is woken without a reason.
#include "test/call/world.h"
#include "test/transport/sealed.h"

namespace tw::test {
namespace {

// As a peer does that writes to the word on which a driver sleeps.
struct Restless final : SealedTransport {
  explicit Restless(std::unique_ptr<Transport> inner)
      : SealedTransport(std::move(inner), SealKey{}, SealKey{}) {}
  Wake sleep(bool, Nanos) override { return Wake::kReady; }
};

class QuietPort final : public CallPort {
 public:
  using CallPort::CallPort;

 private:
  Status on_request(Ref<Parcel>) override { return {}; }
};

TEST_CASE("link: who is woken without end hears of its deadline") {
  TransportPair pair = Loop::make();
  auto poller = runtime().background();
  REQUIRE(poller.ok());
  const auto link =
      make_ref<Link>(runtime(), **poller, std::make_unique<Restless>(std::move(pair.a)), Peer{},
                     1 << 20, Link::Role::kServer);
  link->attach<QuietPort>();
  REQUIRE(link->start().ok());
  Event event;
  CHECK(link->wait(event, [] { return false; }, now() + 20 * kMillisecond) == Waited::kTimeout);
  CHECK(link->alive());
  link->close({Code::kCancelled, "the test is over"});
}

}  // namespace
}  // namespace tw::test
