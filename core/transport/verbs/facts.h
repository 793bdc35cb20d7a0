// SPDX-License-Identifier: Apache-2.0
// What this host has of RDMA, for people who ask why a link went the way it did.
#pragma once

#include "base/fact.h"
#include "transport/verbs/settings.h"

namespace tw::verbs {

struct Library;

// `why_not`: why links cannot use RDMA, empty when they can. `ports`: records with name, state,
// layer, lid, mtu, megabits, numa_node, chosen_gid (-1: none), unusable, used, and `gids`: records
// with index, address and kind.
Facts facts(const Library& library, const Settings& settings);

}  // namespace tw::verbs
