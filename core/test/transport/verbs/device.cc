// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/device.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "test/transport/verbs/fake_device.h"

namespace tw::verbs {
namespace {

TEST_SUITE("verbs") {
  TEST_CASE("a device is described as it is") {
    FakeDevice mixed{"mlx5_0", {infiniband_port(42), roce_port({{5, "::ffff:10.1.2.3"}})}};
    mixed.numa_node = 3;
    mixed.ports[1].state = IBV_PORT_INIT;
    mixed.ports[1].mtu = IBV_MTU_1024;
    FakeHost host({mixed});
    const auto devices = list_devices(host.library());
    REQUIRE(devices.ok());
    REQUIRE(devices->size() == 1);
    const Device& device = devices->front();
    CHECK(device.name == "mlx5_0");
    CHECK(device.numa_node == 3);
    CHECK(device.atomics);
    CHECK(device.windows);
    CHECK(device.exact_windows);
    CHECK(device.unusable.empty());
    CHECK(device.reads_served == 16);
    CHECK(device.reads_started == 255);  // what a queue pair's attribute can say
    REQUIRE(device.ports.size() == 2);
    const DevicePort& first = device.ports[0];
    CHECK(first.active);
    CHECK(first.state == "PORT_ACTIVE");
    CHECK(first.layer == LinkLayer::kInfiniBand);
    CHECK(first.lid == 42);
    CHECK(first.mtu == 4096);
    CHECK(first.megabits == 200'000);
    const DevicePort& second = device.ports[1];
    CHECK_FALSE(second.active);
    CHECK(second.state == "PORT_INIT");
    CHECK(second.layer == LinkLayer::kEthernet);
    CHECK(second.mtu == 1024);
    CHECK(second.megabits == 100'000);
    REQUIRE(second.gids.size() == 1);
    CHECK(second.gids[0].index == 5);
    CHECK(second.gids[0].to_string() == "::ffff:10.1.2.3");
    CHECK(second.gids[0].ipv4());
    CHECK(describe(*devices) == "mlx5_0:1 (active, InfiniBand), mlx5_0:2 (PORT_INIT, Ethernet)");
    CHECK(host.counts() == FakeHost::Counts{});  // nothing stays open
  }

  TEST_CASE("a device may lack atomics and windows") {
    FakeDevice plain{"irdma0", {roce_port({{0, "::ffff:10.0.0.1"}})}};
    plain.atomics = IBV_ATOMIC_NONE;
    plain.flags = 0;
    const FakeHost host({plain});
    const auto devices = list_devices(host.library());
    REQUIRE(devices.ok());
    CHECK_FALSE(devices->front().atomics);
    CHECK_FALSE(devices->front().windows);
  }

  TEST_CASE("windows of Soft-RoCE do not hold peers to their bounds") {
    FakeDevice soft{"renamed0", {roce_port({{0, "::ffff:10.0.0.1"}})}};
    soft.vendor = 0xff'ffff;
    const FakeHost host({soft});
    const auto devices = list_devices(host.library());
    REQUIRE(devices.ok());
    CHECK(devices->front().windows);
    CHECK_FALSE(devices->front().exact_windows);
  }

  TEST_CASE("a speed that the header does not know comes from sysfs") {
    FakeDevice device{"mlx5_0", {infiniband_port(1)}};
    device.ports[0].speed = 0;
    FakeHost host({device});
    CHECK(list_devices(host.library())->front().ports[0].megabits == 0);
    host.attributes["/sys/class/infiniband/mlx5_0/ports/1/rate"] = "800 Gb/sec (4X XDR)";
    CHECK(list_devices(host.library())->front().ports[0].megabits == 800'000);
  }

  TEST_CASE("a device that cannot be opened is left out, and named") {
    FakeDevice locked{"mlx5_0", {infiniband_port(1)}};
    locked.open_error = EACCES;
    const FakeHost host({locked, {"mlx5_1", {infiniband_port(2)}}});
    std::vector<std::string> skipped;
    const auto devices = list_devices(host.library(), &skipped);
    REQUIRE(devices.ok());
    REQUIRE(devices->size() == 1);
    CHECK(devices->front().name == "mlx5_1");
    REQUIRE(skipped.size() == 1);
    CHECK(skipped[0] == "cannot open RDMA device mlx5_0: Permission denied");
  }

  TEST_CASE("a kernel without RDMA is an answer that says what to load") {
    FakeHost host;
    host.list_error = ENOSYS;
    const auto devices = list_devices(host.library());
    REQUIRE_FALSE(devices.ok());
    CHECK(devices.status().code() == Code::kFailedPrecondition);
    CHECK(devices.status().details().find("the kernel offers no RDMA") != std::string::npos);
    host.list_error = 0;
    CHECK(list_devices(host.library())->empty());
  }

  TEST_CASE("distances are read from the row of the node where this thread runs") {
    FakeHost host;
    for (int node = 0; node < 64; ++node)
      host.attributes["/sys/devices/system/node/node" + std::to_string(node) + "/distance"] =
          "10 21 32";
    CHECK(numa_distance(host.library(), 0) == 10);
    CHECK(numa_distance(host.library(), 1) == 21);
    CHECK(numa_distance(host.library(), 2) == 32);
    CHECK(numa_distance(host.library(), 3) == 10);   // no such node
    CHECK(numa_distance(host.library(), -1) == 10);  // not known
    host.attributes.clear();
    CHECK(numa_distance(host.library(), 1) == 10);
  }

  TEST_CASE("path MTUs are rounded down to what verbs can spell") {
    const std::pair<uint32_t, uint8_t> rows[] = {{100, 1},  {256, 1},  {511, 1},
                                                 {512, 2},  {1024, 3}, {2047, 3},
                                                 {2048, 4}, {4096, 5}, {9000, 5}};
    for (const auto& [bytes, code] : rows) CHECK(mtu_code(bytes) == code);
    CHECK(mtu_bytes(1) == 256);
    CHECK(mtu_bytes(5) == 4096);
    CHECK(mtu_bytes(0) == 0);
    CHECK(mtu_bytes(6) == 0);
  }
}

}  // namespace
}  // namespace tw::verbs
