// SPDX-License-Identifier: Apache-2.0
// What a device lets a peer at while memory runs out.
#include "access/exposing.h"

#include <doctest/doctest.h>

#include "access/grant.h"
#include "test/shortage.h"
#include "test/transport/pair.h"

namespace tw::test {
namespace {

struct Device final : SealedTransport {
  Device() : SealedTransport(std::move(Loop::make().a), SealKey{}, SealKey{}) {}
  void conceal(const RemoteKey& key) override {
    ++concealed;
    last = key;
  }
  int concealed = 0;
  RemoteKey last;
};

TEST_CASE("one-sided: a device lets nobody at memory for whose grant there is none") {
  Device device;
  Ref<Grant> grant;
  const auto expose = [&] {
    return has_memory_for([&] {
      Exposing exposing(&device, {7, 8});
      grant = make_ref<Grant>(wire::Region{}, nullptr, Hold{});
      exposing.done();
    });
  };
  CHECK(expose());
  CHECK(grant);
  CHECK(device.concealed == 0);
  if (!kFailsOnDemand) return;
  grant = nullptr;
  Failing failing(1);
  const bool exposed = expose();
  REQUIRE(failing.end());
  CHECK_FALSE(exposed);
  CHECK_FALSE(grant);
  CHECK(device.concealed == 1);
  CHECK(device.last.address == 7);
  CHECK(device.last.key == 8);
}

}  // namespace
}  // namespace tw::test
