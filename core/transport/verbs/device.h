// SPDX-License-Identifier: Apache-2.0
// What RDMA devices this host has, with their ports and addresses.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct ibv_context;

namespace tw::verbs {

struct Library;

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
enum class LinkLayer : uint8_t { kInfiniBand, kEthernet };

// An address in a port's table of them.
struct Gid {
  uint8_t index = 0;
  GidType type = GidType::kInfiniBand;
  std::array<uint8_t, 16> bytes{};

  bool ipv4() const;        // ::ffff:a.b.c.d
  bool link_local() const;  // fe80::/10
  std::string to_string() const;
  friend bool operator==(const Gid&, const Gid&) = default;
};

struct DevicePort {
  uint8_t number = 0;
  bool active = false;
  std::string state;  // as ibv_devinfo says it: PORT_DOWN, PORT_INIT, PORT_ARMED, PORT_ACTIVE
  LinkLayer layer = LinkLayer::kInfiniBand;
  uint16_t lid = 0;
  uint32_t mtu = 0;          // bytes, the active one
  uint64_t megabits = 0;     // per second, width x speed; 0: not known
  uint32_t max_message = 0;  // bytes
  std::vector<Gid> gids;     // without the empty ones
};

struct Device {
  std::string name;
  std::string unusable;          // why links cannot use it, as a clause; mostly empty
  int numa_node = -1;            // -1: not known
  uint32_t max_queue_depth = 0;  // work requests of a queue pair
  uint32_t max_completions = 0;  // entries of a completion queue
  uint8_t reads_served = 0;      // RDMA READs and atomics that peers may have under way here
  uint8_t reads_started = 0;     // and that this end may have under way there
  bool atomics = false;
  bool windows = false;        // memory windows of type 2
  bool exact_windows = false;  // which hold peers to their own bounds, not to the registration's
  std::vector<DevicePort> ports;
};

// A port that links use, and the address that it goes by.
struct Rail {
  std::string device;
  DevicePort port;
  Gid gid;
  bool global_route = false;  // InfiniBand: the user has asked for a global route header
};

// All devices of this host; an empty list is no error. A device that cannot be opened is left out
// and named in `skipped`. FAILED_PRECONDITION: the kernel has no RDMA support.
Result<std::vector<Device>> list_devices(const Library& library,
                                         std::vector<std::string>* skipped = nullptr);
// An opened device and its ports as they are now. UNAVAILABLE: it does not answer.
Result<Device> query(const Library& library, ibv_context* context, std::string name);
Result<DevicePort> query_port(const Library& library, ibv_context* context,
                              const std::string& device, uint8_t number);

// How far memory and processors of a NUMA node are from where this thread runs, in the kernel's
// units; 10 is local, and what a node that is not known counts as.
int numa_distance(const Library& library, int node);

// "rxe0:1 (active, Ethernet), mlx5_0:1 (PORT_DOWN, InfiniBand)", for sentences.
std::string describe(std::span<const Device> devices);

// Whether packets from `rail` to a peer's address carry a global route header.
bool needs_global_route(const Rail& rail, const std::array<uint8_t, 16>& peer);

// Path MTU of the bytes given (256 .. 4096) as verbs spells it (1 .. 5), and back.
uint8_t mtu_code(uint32_t bytes);
uint32_t mtu_bytes(uint8_t code);

std::string_view name(GidType type);     // "InfiniBand", "RoCE v1", "RoCE v2"
std::string_view name(LinkLayer layer);  // "InfiniBand", "Ethernet"

}  // namespace tw::verbs
