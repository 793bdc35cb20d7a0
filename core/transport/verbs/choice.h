// SPDX-License-Identifier: Apache-2.0
// Which ports and addresses links use.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/verbs/device.h"
#include "transport/verbs/settings.h"

namespace tw::verbs {

// RoCE v2 before v1, IPv4 before global IPv6 before link-local, as UCX and NCCL choose; on
// InfiniBand index 0. `settings.gid_index` decides where it is set. FAILED_PRECONDITION,
// NOT_FOUND: lists what there is.
Result<Gid> choose_gid(const Device& device, const DevicePort& port, const Settings& settings);

// The rails of `settings.devices` in the order given; else one: of the active ports the
// closest, then the fastest. FAILED_PRECONDITION, NOT_FOUND, INVALID_ARGUMENT: lists what there
// is.
Result<std::vector<Rail>> choose_rails(std::span<const Device> devices, const Settings& settings,
                                       const std::function<int(int node)>& distance);

}  // namespace tw::verbs
