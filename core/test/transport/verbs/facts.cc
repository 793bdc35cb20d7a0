// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/facts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "test/transport/verbs/fake_device.h"

namespace tw::verbs {
namespace {

const Fact& in(const Facts& record, std::string_view name) {
  const auto found = std::ranges::find(record, name, &Fact::name);
  REQUIRE(found != record.end());
  return *found;
}

Facts facts_of(const FakeHost& host, const Settings& settings = {}) {
  return facts(host.library(), settings);
}

const Facts& port_of(const Facts& all, size_t index) {
  const Fact& ports = in(all, "ports");
  REQUIRE(ports.kind == Fact::Kind::kList);
  REQUIRE(ports.facts.size() > index);
  return ports.facts[index].facts;
}

TEST_SUITE("verbs") {
  TEST_CASE("facts: every port with its addresses, and which of them links use") {
    FakeDevice down{"mlx5_1", {infiniband_port(9)}};
    down.ports[0].state = IBV_PORT_DOWN;
    FakeHost host(
        {{"mlx5_0", {roce_port({{0, "fe80::1", IBV_GID_TYPE_ROCE_V1}, {3, "::ffff:10.0.0.1"}})}},
         down});
    const Facts all = facts_of(host);
    CHECK(in(all, "why_not").text.empty());
    const Facts& first = port_of(all, 0);
    CHECK(in(first, "name").text == "mlx5_0:1");
    CHECK(in(first, "used").number == 1);
    CHECK(in(first, "state").text == "PORT_ACTIVE");
    CHECK(in(first, "layer").text == "Ethernet");
    CHECK(in(first, "megabits").number == 100'000);
    CHECK(in(first, "chosen_gid").number == 3);
    const Facts& gids = in(first, "gids").facts;
    REQUIRE(gids.size() == 2);
    CHECK(in(gids[0].facts, "index").number == 0);
    CHECK(in(gids[0].facts, "address").text == "fe80::1");
    CHECK(in(gids[0].facts, "kind").text == "RoCE v1");
    CHECK(in(gids[1].facts, "index").number == 3);
    CHECK(in(gids[1].facts, "address").text == "::ffff:10.0.0.1");
    CHECK(in(gids[1].facts, "kind").text == "RoCE v2");
    const Facts& second = port_of(all, 1);
    CHECK(in(second, "name").text == "mlx5_1:1");
    CHECK(in(second, "used").number == 0);
    CHECK(in(second, "state").text == "PORT_DOWN");
    CHECK(in(second, "lid").number == 9);
    CHECK(host.counts() == FakeHost::Counts{});
  }

  TEST_CASE("facts: the reason where links cannot use RDMA") {
    FakeHost host;
    CHECK(in(facts_of(host), "why_not").text == "this host has no RDMA devices");
    host.list_error = ENOSYS;
    CHECK(in(facts_of(host), "why_not").text.find("the kernel offers no RDMA") == 0);
    FakeHost one({{"mlx5_0", {roce_port({})}}});
    Settings settings;
    settings.devices = {"mlx5_7"};
    const Facts all = facts_of(one, settings);
    CHECK(in(all, "why_not").text.find("'mlx5_7' is not on this host") != std::string::npos);
    CHECK(in(port_of(all, 0), "chosen_gid").number == -1);
  }
}

}  // namespace
}  // namespace tw::verbs
