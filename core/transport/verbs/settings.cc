// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/settings.h"

#include <charconv>

namespace tw::verbs {
namespace {

using setting::Entries, setting::Shape, setting::Whole;

bool device_entry(std::string_view entry) { return named_port(entry).has_value(); }

constexpr Entries kDevices{
    "names of RDMA devices as in ibv_devices, with commas between; :<port> may follow",
    device_entry};

// A timeout of 0 would wait for ever, and so would 7 retries.
constexpr SettingOf<Settings> kSettings[] = {
    {&Settings::devices,
     {"verbs_device", "TENSORWIRE_VERBS_DEVICE", kDevices,
      "RDMA: the ports that links use, mlx5_0 or mlx5_0:1,mlx5_1:1. Several share the chunks of "
      "each link. Without it: of the active ports the one closest to the process (NUMA), then the "
      "fastest",
      "the closest", "TF_RDMA_DEV_NAME", kDevices}},
    {&Settings::gid_index,
     {"verbs_gid_index", "TENSORWIRE_VERBS_GID_INDEX", Whole{0, 255},
      "RDMA: the port's address, an index as in show_gids. Chosen: RoCE v2 before v1, IPv4 before "
      "global IPv6 before link-local; 0 on InfiniBand",
      "chosen"}},
    {&Settings::pkey_index,
     {"verbs_pkey_index", "TENSORWIRE_VERBS_PKEY_INDEX", Whole{0, 65535},
      "RDMA: index of the partition key (InfiniBand)"}},
    {&Settings::mtu,
     {"verbs_mtu", "TENSORWIRE_VERBS_MTU", Whole{256, 4096, Shape::kPowerOfTwo},
      "RDMA: bytes of a packet; the smaller of both ends' counts", "the port's"}},
    {&Settings::service_level,
     {"verbs_service_level", "TENSORWIRE_VERBS_SERVICE_LEVEL", Whole{0, 15},
      "RDMA: InfiniBand service level; the priority of RoCE v1"}},
    {&Settings::traffic_class,
     {"verbs_traffic_class", "TENSORWIRE_VERBS_TRAFFIC_CLASS", Whole{0, 255},
      "RDMA: of RoCE v2 the DSCP in the upper six bits, for a lossless class"}},
    {&Settings::queue_depth,
     {"verbs_queue_depth", "TENSORWIRE_VERBS_QUEUE_DEPTH", Whole{8, 4096},
      "RDMA: buffers of a link for SENDs, half of them to receive: about 1.1 MB of locked memory "
      "for each link by default"}},
    {&Settings::timeout,
     {"verbs_timeout", "TENSORWIRE_VERBS_TIMEOUT", Whole{1, 31},
      "RDMA: 4.096 us x 2^n until an answer counts as lost (16: 0.27 s)"}},
    {&Settings::retry_count,
     {"verbs_retry_count", "TENSORWIRE_VERBS_RETRY_COUNT", Whole{0, 6},
      "RDMA: repeats until the link is lost"}},
    {&Settings::inline_bytes,
     {"verbs_inline_bytes", "TENSORWIRE_VERBS_INLINE_BYTES", Whole{0, 1024},
      "RDMA: smaller sends go with the work request itself and need no buffer; at most what the "
      "adapter can"}},
    {&Settings::qps,
     {"verbs_qps", "TENSORWIRE_VERBS_QPS", Whole{1, 16},
      "RDMA: queue pairs for each port of a link, among which chunks are shared; the smaller of "
      "both ends' numbers counts, and 16 for all ports together are the most"}},
    {&Settings::cqs,
     {"verbs_cqs", "TENSORWIRE_VERBS_CQS", Whole{1, 64},
      "RDMA: completion queues of a device, among which links are shared"}},
};

}  // namespace

std::optional<NamedPort> named_port(std::string_view entry) {
  const size_t colon = entry.find(':');
  NamedPort port{.device = entry.substr(0, colon)};
  constexpr std::string_view kPermitted =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  if (port.device.empty() || port.device.size() > 63) return {};
  if (port.device.find_first_not_of(kPermitted) != std::string_view::npos) return {};
  if (colon == std::string_view::npos) return port;
  const char* const last = entry.data() + entry.size();
  const auto [end, error] = std::from_chars(entry.data() + colon + 1, last, port.number);
  if (error != std::errc{} || end != last || port.number < 1 || port.number > 255) return {};
  return port;
}

Status read_settings(Settings& into) { return tw::read_settings(kSettings, into); }

void each_setting(const Settings& in_force, const VisitSetting& visit) {
  tw::each_setting(kSettings, in_force, visit);
}

}  // namespace tw::verbs
