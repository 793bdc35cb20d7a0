// SPDX-License-Identifier: Apache-2.0
// What this host has of RDMA, for people who ask why a link went the way it did.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"

namespace tw::verbs {

struct Library;

// `verbs`: why links cannot use RDMA, empty when they can. For each port
// `verbs.<device>:<port>.<name>` with state, layer, lid, mtu, megabits, numa_node, chosen_gid (-1:
// none), unusable and used, and `.gid.<index>`: an address and its kind.
std::vector<std::pair<std::string, std::string>> facts(const Library& library,
                                                       const Settings& settings);

}  // namespace tw::verbs
