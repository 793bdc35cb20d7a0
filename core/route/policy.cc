// SPDX-License-Identifier: Apache-2.0
#include "route/policy.h"

#include <algorithm>

#include "base/text.h"

namespace tw::route {

std::string Policy::refusal(std::string_view transport) const {
  if (!required.empty() && required != transport)
    return text({required, " is required by ", origin});
  return std::ranges::find(forbidden, transport) == forbidden.end() ? "" : "forbidden";
}

}  // namespace tw::route
