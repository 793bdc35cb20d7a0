// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/choice.h"

#include <doctest/doctest.h>

#include "test/transport/verbs/fake_device.h"

namespace tw::verbs {
namespace {

constexpr uint32_t kV1 = IBV_GID_TYPE_ROCE_V1;
constexpr uint32_t kV2 = IBV_GID_TYPE_ROCE_V2;

std::vector<Device> devices_of(const FakeHost& host) {
  auto devices = list_devices(host.library());
  REQUIRE(devices.ok());
  return std::move(*devices);
}

int near(int) { return 10; }

FakePort active() { return roce_port({{0, "::ffff:10.0.0.1", kV2}}); }
FakePort down() {
  FakePort port = active();
  port.state = IBV_PORT_DOWN;
  return port;
}
FakePort with_speed(uint8_t speed) {
  FakePort port = active();
  port.speed = speed;
  return port;
}

TEST_SUITE("verbs") {
  TEST_CASE("GIDs: RoCE v2 before v1, IPv4 before global IPv6 before link-local") {
    struct Row {
      const char* what;
      std::vector<FakeGid> gids;
      int chosen;  // -1: none
    };
    const Row rows[] = {
        {"v2 before v1 of one address",
         {{0, "::ffff:10.0.0.1", kV1}, {1, "::ffff:10.0.0.1", kV2}},
         1},
        {"as Linux fills the table",
         {{0, "fe80::1", kV1},
          {1, "fe80::1", kV2},
          {2, "::ffff:10.0.0.1", kV1},
          {3, "::ffff:10.0.0.1", kV2}},
         3},
        {"IPv4 before global IPv6", {{0, "2001:db8::1", kV2}, {1, "::ffff:10.0.0.1", kV2}}, 1},
        {"global IPv6 before link-local", {{0, "fe80::1", kV2}, {1, "2001:db8::1", kV2}}, 1},
        {"link-local v2 before IPv4 v1", {{0, "::ffff:10.0.0.1", kV1}, {1, "fe80::1", kV2}}, 1},
        {"v1 only", {{0, "fe80::1", kV1}, {1, "::ffff:10.0.0.1", kV1}}, 1},
        {"v1, link-local only", {{4, "fe80::1", kV1}}, 4},
        {"the first of equals", {{7, "::ffff:10.0.0.1", kV2}, {9, "::ffff:10.0.0.2", kV2}}, 7},
        {"the last that can be named", {{0, "fe80::1", kV1}, {255, "::ffff:10.0.0.1", kV2}}, 255},
        {"none", {}, -1},
    };
    for (const Row& row : rows) {
      INFO(row.what);
      const FakeHost host({{"mlx5_0", {roce_port(row.gids)}}});
      const auto devices = devices_of(host);
      const auto gid = choose_gid(devices[0], devices[0].ports[0], {});
      if (row.chosen >= 0) {
        REQUIRE(gid.ok());
        CHECK(gid->index == row.chosen);
      } else {
        REQUIRE_FALSE(gid.ok());
        CHECK(gid.status().code() == Code::kFailedPrecondition);
        CHECK(gid.status().details().find("mlx5_0:1 has no GID to use") != std::string::npos);
      }
    }
  }

  TEST_CASE("the types of GIDs come from sysfs where the library cannot tell them") {
    FakeHost host(
        {{"mlx5_0", {roce_port({{0, "::ffff:10.0.0.1", kV1}, {1, "::ffff:10.0.0.1", kV2}})}}});
    host.table().query_gid_ex = nullptr;
    const std::string types = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/";
    host.attributes[types + "0"] = "IB/RoCE v1";
    host.attributes[types + "1"] = "RoCE v2";
    const auto devices = devices_of(host);
    REQUIRE(devices[0].ports[0].gids.size() == 2);
    CHECK(devices[0].ports[0].gids[0].type == GidType::kRoceV1);
    CHECK(devices[0].ports[0].gids[1].type == GidType::kRoceV2);
    CHECK(choose_gid(devices[0], devices[0].ports[0], {})->index == 1);
  }

  TEST_CASE("InfiniBand goes by LID and GID 0, with a global route only where it must") {
    FakePort port = infiniband_port(17, "fe80::2:c903:1:2");
    port.gids.push_back({1, "fd00::5", IBV_GID_TYPE_IB});
    const FakeHost host({{"mlx4_0", {port}}});
    const auto devices = devices_of(host);
    const auto rails = choose_rails(devices, {}, near);
    REQUIRE(rails.ok());
    REQUIRE(rails->size() == 1);
    const Rail& rail = rails->front();
    CHECK(rail.port.lid == 17);
    CHECK(rail.gid.index == 0);
    CHECK(rail.gid.type == GidType::kInfiniBand);

    std::array<uint8_t, 16> peer = rail.gid.bytes;
    peer[15] ^= 1;
    CHECK_FALSE(needs_global_route(rail, peer));
    CHECK_FALSE(needs_global_route(rail, {}));
    peer[7] ^= 1;  // another subnet
    CHECK(needs_global_route(rail, peer));

    Settings asked;
    asked.gid_index = 1;
    const auto global = choose_rails(devices, asked, near);
    REQUIRE(global.ok());
    CHECK(global->front().gid.index == 1);
    CHECK(needs_global_route(global->front(), global->front().gid.bytes));
  }

  TEST_CASE("RoCE always needs a global route") {
    const FakeHost host({{"mlx5_0", {active()}}});
    const auto rails = choose_rails(devices_of(host), {}, near);
    REQUIRE(rails.ok());
    CHECK(needs_global_route(rails->front(), rails->front().gid.bytes));
  }

  TEST_CASE("a GID index that is set is taken, or refused with a list") {
    const FakeHost host(
        {{"mlx5_0", {roce_port({{0, "fe80::1", kV1}, {3, "::ffff:10.0.0.1", kV2}})}}});
    const auto devices = devices_of(host);
    Settings settings;
    settings.gid_index = 0;
    CHECK(choose_gid(devices[0], devices[0].ports[0], settings)->index == 0);
    settings.gid_index = 2;
    const auto gid = choose_gid(devices[0], devices[0].ports[0], settings);
    REQUIRE_FALSE(gid.ok());
    CHECK(gid.status().code() == Code::kNotFound);
    INFO(gid.status().details());
    CHECK(gid.status().details().find("TENSORWIRE_VERBS_GID_INDEX=2") != std::string::npos);
    CHECK(gid.status().details().find("0 (fe80::1, RoCE v1), 3 (::ffff:10.0.0.1, RoCE v2)") !=
          std::string::npos);
  }

  TEST_CASE("rails: what is set, else the closest, then the fastest active port") {
    FakeDevice iwarp{"siw0", {active()}};
    iwarp.transport = IBV_TRANSPORT_IWARP;
    iwarp.node = IBV_NODE_RNIC;
    iwarp.atomics = IBV_ATOMIC_NONE;
    FakeDevice efa{"efa_0", {active()}};
    efa.transport = IBV_TRANSPORT_UNSPECIFIED;
    efa.node = IBV_NODE_UNSPECIFIED;
    FakeDevice far{"far", {with_speed(128)}};
    far.numa_node = 1;
    FakeDevice slow{"slow", {with_speed(16), active()}};
    slow.numa_node = 0;
    FakeDevice dead{"dead", {down(), down()}};
    dead.numa_node = 0;
    FakeDevice half{"half", {down(), active()}};
    half.numa_node = 1;

    struct Row {
      std::vector<FakeDevice> devices;
      std::vector<std::string> wanted;
      const char* chosen;  // "name:port" each, or what the refusal says
      Code code = Code::kOk;
    };
    const Code kFailed = Code::kFailedPrecondition;
    const Row rows[] = {
        {{}, {}, "this host has no RDMA devices", kFailed},
        {{far}, {}, "far:1"},
        {{far, slow}, {}, "slow:2"},       // closest, then the faster port of it
        {{dead, far}, {}, "far:1"},        // an active port far away before a dead one
        {{half, far}, {}, "far:1"},        // both far: the faster
        {{iwarp, efa, far}, {}, "far:1"},  // not what links cannot use
        {{dead}, {}, "dead:1 is not active but PORT_DOWN", kFailed},
        {{iwarp}, {}, "iWARP connects through rdma_cm only", kFailed},
        {{efa}, {}, "efa_0: it has no reliable connections", kFailed},
        {{far, slow}, {"far"}, "far:1"},
        {{far, slow}, {"slow"}, "slow:1"},
        {{far, slow}, {"slow:2", "far"}, "slow:2 far:1"},
        {{far, slow}, {"slow:1", "slow:2"}, "slow:1 slow:2"},
        {{half, slow}, {"half"}, "half:2"},
        {{half, slow},
         {"half:1"},
         "half:1 is not active but PORT_DOWN; there are: half:1 "
         "(PORT_DOWN, Ethernet), half:2 (active, Ethernet), slow:1",
         kFailed},
        {{far, slow},
         {"mlx5_9"},
         "names mlx5_9: 'mlx5_9' is not on this host; there are: far:1 "
         "(active, Ethernet), slow:1",
         Code::kNotFound},
        {{far, slow}, {"far:2"}, "'far:2' is not on this host", Code::kNotFound},
        {{far, slow}, {"far", "gone"}, "'gone' is not on this host", Code::kNotFound},
        {{}, {"far"}, "there are: none", Code::kNotFound},
        {{slow}, {"slow", "slow:1"}, "names slow:1 twice", Code::kInvalidArgument},
        {{iwarp, far}, {"siw0"}, "iWARP connects through rdma_cm only", kFailed},
    };
    for (const Row& row : rows) {
      INFO(row.chosen);
      const FakeHost host(row.devices);
      Settings settings;
      settings.devices = row.wanted;
      const auto rails =
          choose_rails(devices_of(host), settings, [](int node) { return node == 1 ? 21 : 10; });
      if (row.code == Code::kOk) {
        REQUIRE(rails.ok());
        std::string got;
        for (const Rail& rail : *rails)
          got += (got.empty() ? "" : " ") + rail.device + ":" + std::to_string(rail.port.number);
        CHECK(got == row.chosen);
      } else {
        REQUIRE_FALSE(rails.ok());
        INFO(rails.status().details());
        CHECK(rails.status().code() == row.code);
        CHECK(rails.status().details().find(row.chosen) != std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace tw::verbs
