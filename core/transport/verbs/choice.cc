// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/choice.h"

#include <optional>
#include <string>
#include <tuple>

#include "base/text.h"

namespace tw::verbs {
namespace {

constexpr std::string_view kSetting = "TENSORWIRE_VERBS_DEVICE (or TF_RDMA_DEV_NAME) ";

std::string label(const Device& device, const DevicePort& port) {
  return text({device.name, ":", port.number});
}

std::string list_of(const DevicePort& port) {
  std::string list;
  for (const Gid& gid : port.gids) {
    if (!list.empty()) list += ", ";
    list += text({gid.index, " (", gid.to_string(), ", ", name(gid.type), ")"});
  }
  return list.empty() ? "none" : list;
}

// Less is better.
auto preference(const Gid& gid) {
  return std::tuple(gid.type != GidType::kRoceV2, !gid.ipv4(), gid.link_local(), gid.index);
}

Result<Rail> rail_on(const Device& device, const DevicePort& port, const Settings& settings) {
  if (!device.unusable.empty()) {
    return Status{Code::kFailedPrecondition,
                  text({"links cannot use RDMA device ", device.name, ": ", device.unusable})};
  }
  if (!port.active) {
    return Status{Code::kFailedPrecondition,
                  text({"RDMA port ", label(device, port), " is not active but ", port.state})};
  }
  auto gid = choose_gid(device, port, settings);
  if (!gid) return gid.status();
  const bool asked = port.layer == LinkLayer::kInfiniBand && settings.gid_index >= 0;
  return Rail{device.name, port, *gid, asked};
}

Result<Rail> named(std::span<const Device> devices, const std::string& entry,
                   const Settings& settings) {
  const NamedPort wanted = named_port(entry).value_or(NamedPort{});  // the settings are of entries
  Status why{Code::kNotFound, text({quoted(entry), " is not on this host"})};
  for (const Device& device : devices) {
    if (device.name != wanted.device) continue;
    for (const DevicePort& port : device.ports) {
      if (wanted.number != 0 && port.number != wanted.number) continue;
      auto rail = rail_on(device, port, settings);
      if (rail) return rail;
      if (why.code() == Code::kNotFound) why = rail.status();
    }
  }
  return Status{why.code(), text({kSetting, "names ", entry, ": ", why.details(),
                                  "; there are: ", describe(devices)})};
}

Result<Rail> closest(std::span<const Device> devices, const Settings& settings,
                     const std::function<int(int node)>& distance) {
  std::optional<Rail> best;
  std::tuple<int, uint64_t> best_rank;
  std::string reasons;
  for (const Device& device : devices) {
    for (const DevicePort& port : device.ports) {
      auto rail = rail_on(device, port, settings);
      if (!rail) {
        reasons += (reasons.empty() ? "" : "; ") + rail.status().details();
        continue;
      }
      const std::tuple rank(distance(device.numa_node), UINT64_MAX - port.megabits);
      if (!best || rank < best_rank) {
        best = std::move(*rail);
        best_rank = rank;
      }
    }
  }
  if (best) return std::move(*best);
  return Status{Code::kFailedPrecondition,
                devices.empty() ? "this host has no RDMA devices"
                                : "no RDMA port of this host can be used: " + reasons};
}

}  // namespace

Result<Gid> choose_gid(const Device& device, const DevicePort& port, const Settings& settings) {
  const int wanted = settings.gid_index;
  const Gid* best = nullptr;
  for (const Gid& gid : port.gids) {
    if (wanted >= 0) {
      if (gid.index == wanted) return gid;
    } else if (port.layer == LinkLayer::kInfiniBand) {
      if (gid.index == 0) return gid;
    } else if (!best || preference(gid) < preference(*best)) {
      best = &gid;
    }
  }
  if (best) return *best;
  if (wanted >= 0) {
    return Status{Code::kNotFound,
                  text({"TENSORWIRE_VERBS_GID_INDEX=", wanted, ": RDMA port ", label(device, port),
                        " has no such GID; it has: ", list_of(port)})};
  }
  return Status{Code::kFailedPrecondition,
                text({"RDMA port ", label(device, port),
                      " has no GID to use (on Ethernet its network interface must be up and have "
                      "an address); it has: ",
                      list_of(port)})};
}

Result<std::vector<Rail>> choose_rails(std::span<const Device> devices, const Settings& settings,
                                       const std::function<int(int node)>& distance) {
  std::vector<Rail> rails;
  for (const std::string& entry : settings.devices) {
    auto rail = named(devices, entry, settings);
    if (!rail) return rail.status();
    for (const Rail& other : rails) {
      if (other.device == rail->device && other.port.number == rail->port.number) {
        return Status{Code::kInvalidArgument,
                      text({kSetting, "names ", rail->device, ":", rail->port.number, " twice"})};
      }
    }
    rails.push_back(std::move(*rail));
  }
  if (!rails.empty()) return rails;
  auto rail = closest(devices, settings, distance);
  if (!rail) return rail.status();
  rails.push_back(std::move(*rail));
  return rails;
}

}  // namespace tw::verbs
