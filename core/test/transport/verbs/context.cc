// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/context.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "test/memory/slab_watch.h"
#include "test/transport/verbs/fake_device.h"

namespace tw::verbs {
namespace {

FakePort port() { return roce_port({{0, "::ffff:10.0.0.1"}}); }

std::unique_ptr<Poller> make_poller() {
  auto poller = Poller::create();
  REQUIRE(poller.ok());
  return std::move(*poller);
}

TEST_SUITE("verbs") {
  TEST_CASE("a context opens what it uses once, and gives all of it back") {
    FakeHost host({{"mlx5_0", {port(), port()}}, {"mlx5_1", {port()}}, {"mlx5_2", {port()}}});
    const auto poller = make_poller();
    Settings settings;
    settings.devices = {"mlx5_0:2", "mlx5_1", "mlx5_0:1"};
    {
      auto context = Context::open(host.library(), settings, *poller);
      REQUIRE(context.ok());
      for (int i = 0; i < 2; ++i) {
        const auto rails = (*context)->rails();
        REQUIRE(rails.ok());
        REQUIRE(rails->size() == 3);
        CHECK((*rails)[0].rail.port.number == 2);
        CHECK((*rails)[0].domain->device().name == "mlx5_0");
        CHECK((*rails)[1].domain->device().name == "mlx5_1");
        CHECK((*rails)[2].domain.get() == (*rails)[0].domain.get());
      }
      CHECK(host.counts().contexts == 2);
      CHECK(host.counts().domains == 2);
    }
    CHECK(host.counts() == FakeHost::Counts{});
  }

  TEST_CASE("why there is no context says everything that is known") {
    const auto poller = make_poller();
    FakeHost host;
    auto none = Context::open(host.library(), {}, *poller);
    REQUIRE_FALSE(none.ok());
    CHECK(none.status().code() == Code::kFailedPrecondition);
    CHECK(none.status().details() == "this host has no RDMA devices");
    FakeDevice locked{"mlx5_0", {port()}};
    locked.open_error = EACCES;
    host.devices = {locked};
    none = Context::open(host.library(), {}, *poller);
    REQUIRE_FALSE(none.ok());
    CHECK(none.status().details() ==
          "this host has no RDMA devices; cannot open RDMA device mlx5_0: Permission denied");
    host.list_error = ENOSYS;
    none = Context::open(host.library(), {}, *poller);
    REQUIRE_FALSE(none.ok());
    CHECK(none.status().details().find("the kernel offers no RDMA") != std::string::npos);
  }

  TEST_CASE("rails are chosen anew after a port has changed, with the same opened devices") {
    FakeHost host({{"mlx5_0", {port()}}, {"mlx5_1", {port()}}});
    const auto poller = make_poller();
    auto context = Context::open(host.library(), {}, *poller);
    REQUIRE(context.ok());
    const Ref<Domain> first = (*context)->rails()->front().domain;
    CHECK(first->device().name == "mlx5_0");

    host.devices[0].ports[0].state = IBV_PORT_DOWN;
    CHECK((*context)->rails()->front().domain.get() == first.get());  // nobody has said so yet
    host.report("mlx5_0", IBV_EVENT_PORT_ERR, 1);
    poller->poll(now() + 5 * kSecond);
    CHECK((*context)->rails()->front().rail.device == "mlx5_1");

    host.devices[1].ports[0].state = IBV_PORT_DOWN;
    host.report("mlx5_1", IBV_EVENT_PORT_ERR, 1);
    poller->poll(now() + 5 * kSecond);
    for (int i = 0; i < 2; ++i)
      CHECK((*context)->rails().status().code() == Code::kFailedPrecondition);

    host.devices[0].ports[0].state = IBV_PORT_ACTIVE;  // found without an event, too
    REQUIRE((*context)->rails().ok());
    CHECK((*context)->rails()->front().domain.get() == first.get());
    CHECK(host.counts().contexts == 2);
  }

  TEST_CASE("a device that was lost is opened anew when it is back") {
    FakeHost host({{"mlx5_0", {port()}}});
    const auto poller = make_poller();
    auto context = Context::open(host.library(), {}, *poller);
    REQUIRE(context.ok());
    Ref<Domain> first = (*context)->rails()->front().domain;
    host.report("mlx5_0", IBV_EVENT_DEVICE_FATAL);
    poller->poll(now() + 5 * kSecond);
    const auto rails = (*context)->rails();
    REQUIRE(rails.ok());
    CHECK(rails->front().domain.get() != first.get());
    CHECK_FALSE(rails->front().domain->lost());
    CHECK(host.counts().contexts == 2);
    first = nullptr;
    CHECK(host.counts().contexts == 1);
  }

  TEST_CASE("the arena's dropped slabs are let go of on every device") {
    FakeHost host({{"mlx5_0", {port()}}, {"mlx5_1", {port()}}});
    const auto poller = make_poller();
    Settings settings;
    settings.devices = {"mlx5_0", "mlx5_1"};
    auto context = Context::open(host.library(), settings, *poller);
    REQUIRE(context.ok());
    auto slab = Slab::make(0, 1, page_size());
    REQUIRE(slab.ok());
    const auto rails = (*context)->rails();
    REQUIRE(rails.ok());
    for (const OpenRail& rail : *rails) REQUIRE(rail.domain->slab(**slab).ok());
    CHECK((*context)->stats().registrations == 2);
    CHECK((*context)->stats().pinned == 2 * page_size());
    (*slab)->drop();
    (*context)->slabs_dropped();
    CHECK((*context)->stats().registrations == 0);
    const test::SlabWatch watch(**slab);
    slab = Status{};
    CHECK(watch.gone());
  }
}

}  // namespace
}  // namespace tw::verbs
