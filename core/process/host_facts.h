// SPDX-License-Identifier: Apache-2.0
// What this host offers to the runtime, for people who ask why a link went the way it did.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "transport/kind.h"

namespace tw {

// Names and values; numbers are decimal, yes and no are 1 and 0.
std::vector<std::pair<std::string, std::string>> host_facts(
    const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds);

}  // namespace tw
