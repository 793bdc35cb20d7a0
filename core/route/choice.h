// SPDX-License-Identifier: Apache-2.0
// What the user permits, read from what a program asks for and from the environment.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "route/attempt.h"
#include "route/policy.h"
#include "transport/kind.h"

namespace tw::route {

// What it leaves open, TENSORWIRE_TRANSPORT and TENSORWIRE_FORBID decide, as they are now.
struct Asked {
  std::string_view transport;  // a way of calls, or auto; empty: open
  std::string_view forbid;     // names with commas between; empty: open
};

// INVALID_ARGUMENT: an unknown name, or none is left. FAILED_PRECONDITION: the same, and a variable
// has part in that. Either sentence says what the user wrote.
Result<Policy> choose(std::span<const std::unique_ptr<Kind>> kinds, const Asked& asked = {});
// Each way that it does not permit, best first, and why.
std::vector<Reason> refused(std::span<const std::unique_ptr<Kind>> kinds, const Policy& policy);

}  // namespace tw::route
