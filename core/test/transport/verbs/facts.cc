// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/facts.h"

#include <doctest/doctest.h>

#include <map>

#include "test/transport/verbs/fake_device.h"

namespace tw::verbs {
namespace {

std::map<std::string, std::string> facts_of(const FakeHost& host, const Settings& settings = {}) {
  std::map<std::string, std::string> all;
  for (auto& [name, value] : facts(host.library(), settings))
    REQUIRE(all.emplace(name, value).second);
  return all;
}

TEST_SUITE("verbs") {
  TEST_CASE("facts: every port with its addresses, and which of them links use") {
    FakeDevice down{"mlx5_1", {infiniband_port(9)}};
    down.ports[0].state = IBV_PORT_DOWN;
    FakeHost host(
        {{"mlx5_0", {roce_port({{0, "fe80::1", IBV_GID_TYPE_ROCE_V1}, {3, "::ffff:10.0.0.1"}})}},
         down});
    auto all = facts_of(host);
    CHECK(all["verbs"].empty());
    CHECK(all["verbs.mlx5_0:1.used"] == "1");
    CHECK(all["verbs.mlx5_0:1.state"] == "PORT_ACTIVE");
    CHECK(all["verbs.mlx5_0:1.layer"] == "Ethernet");
    CHECK(all["verbs.mlx5_0:1.megabits"] == "100000");
    CHECK(all["verbs.mlx5_0:1.chosen_gid"] == "3");
    CHECK(all["verbs.mlx5_0:1.gid.0"] == "fe80::1 RoCE v1");
    CHECK(all["verbs.mlx5_0:1.gid.3"] == "::ffff:10.0.0.1 RoCE v2");
    CHECK(all["verbs.mlx5_1:1.used"] == "0");
    CHECK(all["verbs.mlx5_1:1.state"] == "PORT_DOWN");
    CHECK(all["verbs.mlx5_1:1.lid"] == "9");
    CHECK(host.counts() == FakeHost::Counts{});
  }

  TEST_CASE("facts: the reason where links cannot use RDMA") {
    FakeHost host;
    CHECK(facts_of(host)["verbs"] == "this host has no RDMA devices");
    host.list_error = ENOSYS;
    CHECK(facts_of(host)["verbs"].find("the kernel offers no RDMA") == 0);
    FakeHost one({{"mlx5_0", {roce_port({})}}});
    Settings settings;
    settings.verbs_devices = {"mlx5_7"};
    auto all = facts_of(one, settings);
    CHECK(all["verbs"].find("'mlx5_7' is not on this host") != std::string::npos);
    CHECK(all["verbs.mlx5_0:1.chosen_gid"] == "-1");
  }
}

}  // namespace
}  // namespace tw::verbs
