// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "route/route.h"

namespace tw::route {

// Transports that no process has, best first.
inline const std::vector<Candidate> kCandidates = {
    {"near", true, false}, {"fast", false, true}, {"plain", false, false}};

}  // namespace tw::route
