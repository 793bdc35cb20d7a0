// SPDX-License-Identifier: Apache-2.0
// What this host offers to the runtime, for people who ask why a link went the way it did.
#pragma once

#include <memory>
#include <span>

#include "base/fact.h"
#include "base/settings.h"
#include "transport/kind.h"

namespace tw {

// Yes and no are 1 and 0. `transports` has a record for each kind.
Facts host_facts(const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds);
// As this process has set it; as usual where a setting is wrong, since there is no runtime then.
Facts host_facts();

}  // namespace tw
