// SPDX-License-Identifier: Apache-2.0
// What users can set for RDMA beside what all transports share.
#pragma once

#include <optional>

#include "base/settings.h"

namespace tw::verbs {

// Of `Settings::devices`: what an entry names. number: 0 for any.
struct NamedPort {
  std::string_view device;
  unsigned number = 0;
};

// Nothing: it is no entry.
std::optional<NamedPort> named_port(std::string_view entry);

struct Settings : tw::Settings {
  std::vector<std::string> devices{};  // "mlx5_0", "mlx5_1:2"; without a port the first active one
  int gid_index = -1;                  // -1: chosen
  uint16_t pkey_index = 0;
  uint32_t mtu = 0;  // 0: the port's active one
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint32_t queue_depth = 64;
  uint8_t timeout = 16;
  uint8_t retry_count = 6;
  uint32_t inline_bytes = 128;
  uint32_t qps = 1;
  uint32_t cqs = 1;
};

// INVALID_ARGUMENT, as settings_from_environment().
Status read_settings(Settings& into);
void each_setting(const Settings& in_force, const VisitSetting& visit);

}  // namespace tw::verbs
