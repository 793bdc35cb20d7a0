// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/device.h"

#include <arpa/inet.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/text.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

std::string port_directory(const std::string& device, uint8_t port) {
  return text({"/sys/class/infiniband/", device, "/ports/", port});
}

int number_in(const std::optional<std::string>& line, int otherwise) {
  int number = otherwise;
  if (line) std::from_chars(line->data(), line->data() + line->size(), number);
  return number;
}

uint8_t small(int number) { return static_cast<uint8_t>(std::clamp(number, 0, 255)); }
uint32_t count(int number) { return static_cast<uint32_t>(std::max(number, 0)); }

// Megabits per second of one lane, by the bit that stands for the speed.
uint64_t lane_speed(uint8_t code) {
  switch (code) {
    case 1:
      return 2'500;  // SDR
    case 2:
      return 5'000;  // DDR
    case 4:          // QDR
    case 8:          // FDR10
      return 10'000;
    case 16:
      return 14'000;  // FDR
    case 32:
      return 25'000;  // EDR
    case 64:
      return 50'000;  // HDR
    case 128:
      return 100'000;  // NDR
    default:
      return 0;
  }
}

uint64_t lanes(uint8_t code) {
  switch (code) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

// The kernel's "100 Gb/sec (4X EDR)", for speeds younger than the header.
uint64_t rate_of(const std::optional<std::string>& line) {
  double gigabits = 0;
  if (line) std::from_chars(line->data(), line->data() + line->size(), gigabits);
  return static_cast<uint64_t>(gigabits * 1000);
}

std::string_view state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "PORT_DOWN";
    case IBV_PORT_INIT:
      return "PORT_INIT";
    case IBV_PORT_ARMED:
      return "PORT_ARMED";
    case IBV_PORT_ACTIVE:
      return "PORT_ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
      return "PORT_ACTIVE_DEFER";
    default:
      return "PORT_NOP";
  }
}

// Nothing when the entry is empty.
std::optional<Gid> query_gid(const Library& library, ibv_context* context,
                             const std::string& device, const DevicePort& port, int index) {
  Gid gid;
  gid.index = static_cast<uint8_t>(index);
  if (library.query_gid_ex) {
    ibv_gid_entry entry{};
    const int error = library.query_gid_ex(context, port.number, static_cast<uint32_t>(index),
                                           &entry, 0, sizeof entry);
    if (error == ENODATA) return std::nullopt;
    if (error == 0) {
      std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
      gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::kRoceV2
                 : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1
                                                          : GidType::kInfiniBand;
      return gid;
    }
  }
  ibv_gid raw{};
  if (library.query_gid(context, port.number, index, &raw) != 0) return std::nullopt;
  std::memcpy(gid.bytes.data(), raw.raw, gid.bytes.size());
  if (gid.bytes == std::array<uint8_t, 16>{}) return std::nullopt;
  if (port.layer == LinkLayer::kEthernet) {
    const auto type =
        library.attribute(text({port_directory(device, port.number), "/gid_attrs/types/", index}));
    gid.type = type && type->find("v2") != std::string::npos ? GidType::kRoceV2 : GidType::kRoceV1;
  }
  return gid;
}

// Of rdma_rxe, whose responder checks rights by the window and bounds by the registration below it
// (check_rkey() in drivers/infiniband/sw/rxe/rxe_resp.c of Linux 6.1).
constexpr uint32_t kSoftRoce = 0xff'ffff;

bool has_windows(const ibv_device_attr& attributes) {
  constexpr unsigned kType2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return (attributes.device_cap_flags & kType2) != 0 && attributes.max_mw > 0;
}

std::string_view unusable(const ibv_device& device) {
  if (device.transport_type == IBV_TRANSPORT_IWARP || device.node_type == IBV_NODE_RNIC)
    return "iWARP connects through rdma_cm only, which is not supported";
  if (device.transport_type != IBV_TRANSPORT_IB) return "it has no reliable connections";
  return "";
}

}  // namespace

Result<DevicePort> query_port(const Library& library, ibv_context* context,
                              const std::string& device, uint8_t number) {
  ibv_port_attr attributes;
  if (const int error = library.port(context, number, &attributes); error != 0) {
    return errno_status(Code::kUnavailable, text({"port ", number, " of RDMA device ", device}),
                        error);
  }
  DevicePort port;
  port.number = number;
  port.active = attributes.state == IBV_PORT_ACTIVE || attributes.state == IBV_PORT_ACTIVE_DEFER;
  port.state = state_name(attributes.state);
  port.layer = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::kEthernet
                                                                : LinkLayer::kInfiniBand;
  port.lid = attributes.lid;
  port.mtu = mtu_bytes(static_cast<uint8_t>(attributes.active_mtu));
  port.megabits = lanes(attributes.active_width) * lane_speed(attributes.active_speed);
  if (port.megabits == 0)
    port.megabits = rate_of(library.attribute(port_directory(device, number) + "/rate"));
  port.max_message = attributes.max_msg_sz;
  for (int index = 0; index < std::min(attributes.gid_tbl_len, 256); ++index)
    if (auto gid = query_gid(library, context, device, port, index)) port.gids.push_back(*gid);
  return port;
}

Result<Device> query(const Library& library, ibv_context* context, std::string name) {
  ibv_device_attr attributes{};
  if (const int error = library.query_device(context, &attributes); error != 0)
    return errno_status(Code::kUnavailable, text({"RDMA device ", name}), error);
  Device device;
  device.name = std::move(name);
  device.unusable = unusable(*context->device);
  device.numa_node = number_in(
      library.attribute(text({"/sys/class/infiniband/", device.name, "/device/numa_node"})), -1);
  device.max_queue_depth = count(attributes.max_qp_wr);
  device.max_completions = count(attributes.max_cqe);
  device.reads_served = small(attributes.max_qp_rd_atom);
  device.reads_started = small(attributes.max_qp_init_rd_atom);
  device.atomics = attributes.atomic_cap != IBV_ATOMIC_NONE;
  device.windows = has_windows(attributes);
  device.exact_windows = device.windows && attributes.vendor_id != kSoftRoce;
  for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
    auto port = query_port(library, context, device.name, static_cast<uint8_t>(number));
    if (!port) return port.status();
    device.ports.push_back(std::move(*port));
  }
  return device;
}

Result<std::vector<Device>> list_devices(const Library& library,
                                         std::vector<std::string>* skipped) {
  int found = 0;
  errno = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(library.get_device_list(&found),
                                                                  library.free_device_list);
  if (!list) {
    if (errno == ENOSYS) {
      return Status{Code::kFailedPrecondition,
                    "the kernel offers no RDMA: there is no /sys/class/infiniband_verbs and "
                    "/dev/infiniband (load the driver of the device, or give the container "
                    "--device=/dev/infiniband)"};
    }
    return errno_status(Code::kFailedPrecondition, "cannot list RDMA devices", errno);
  }
  std::vector<Device> devices;
  for (int i = 0; i < found; ++i) {
    std::string name = library.get_device_name(list.get()[i]);
    errno = 0;
    const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(
        library.open_device(list.get()[i]), library.close_device);
    Result<Device> device =
        context ? query(library, context.get(), name)
                : errno_status(Code::kUnavailable, text({"cannot open RDMA device ", name}), errno);
    if (device) {
      devices.push_back(std::move(*device));
    } else if (skipped) {
      skipped->push_back(device.status().details());
    }
  }
  return devices;
}

int numa_distance(const Library& library, int node) {
  unsigned here = 0;
  // glibc has getcpu() since 2.29 only.
  if (node < 0 || syscall(SYS_getcpu, nullptr, &here, nullptr) != 0) return 10;
  const auto line = library.attribute(text({"/sys/devices/system/node/node", here, "/distance"}));
  if (!line) return 10;
  const char* at = line->data();
  const char* const end = at + line->size();
  int distance = 10;
  for (int i = 0; i <= node; ++i) {
    while (at != end && *at == ' ') ++at;
    const auto [next, error] = std::from_chars(at, end, distance);
    if (error != std::errc{}) return 10;
    at = next;
  }
  return distance;
}

std::string describe(std::span<const Device> devices) {
  if (devices.empty()) return "none";
  std::string list;
  for (const Device& device : devices) {
    for (const DevicePort& port : device.ports) {
      if (!list.empty()) list += ", ";
      list += text({device.name, ":", port.number, " (", port.active ? "active" : port.state, ", ",
                    device.unusable.empty() ? name(port.layer) : "iWARP or other", ")"});
    }
  }
  return list;
}

bool needs_global_route(const Rail& rail, const std::array<uint8_t, 16>& peer) {
  if (rail.port.layer == LinkLayer::kEthernet || rail.global_route) return true;
  // The first half of an InfiniBand GID is the subnet.
  return peer != std::array<uint8_t, 16>{} &&
         !std::equal(peer.begin(), peer.begin() + 8, rail.gid.bytes.begin());
}

uint8_t mtu_code(uint32_t bytes) {
  uint8_t code = 1;
  while (code < 5 && mtu_bytes(static_cast<uint8_t>(code + 1)) <= bytes) ++code;
  return code;
}

uint32_t mtu_bytes(uint8_t code) { return code >= 1 && code <= 5 ? 128U << code : 0; }

bool Gid::ipv4() const {
  constexpr std::array<uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

bool Gid::link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

std::string Gid::to_string() const {
  char out[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, bytes.data(), out, sizeof out);
  return out;
}

std::string_view name(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
  }
  return "";
}

std::string_view name(LinkLayer layer) {
  return layer == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand";
}

}  // namespace tw::verbs
