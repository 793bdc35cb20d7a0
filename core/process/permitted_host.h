// SPDX-License-Identifier: Apache-2.0
// The hosts that a user names, to which servers may send their clients.
#pragma once

#include <string_view>

namespace tw {

// A name ("node7"), an address, a network ("10.0.0.0/8"), or "*" for all. The last label of a name
// is no number: what has one is an address, or a mistake in one.
bool permitted_host(std::string_view entry);

}  // namespace tw
