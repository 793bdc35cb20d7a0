// SPDX-License-Identifier: Apache-2.0
#include "route/backoff.h"

#include <algorithm>

namespace tw::route {

Nanos Backoff::pause(int failures, Nanos first, Nanos longest) {
  const Nanos doubled = std::min(longest, first << std::clamp(failures - 1, 0, 10));
  std::uniform_int_distribution<Nanos> percent(80, 120);
  return doubled / 100 * percent(random_);
}

}  // namespace tw::route
