// SPDX-License-Identifier: Apache-2.0
// What each rank says while a group is made, for all: by way of rank 0, which all have links with.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collective/point_to_point.h"

namespace tw::collective {

// By rank. Errors as those of Fabric.
Result<std::vector<std::vector<std::byte>>> share(Members& members, uint64_t tag,
                                                  std::vector<std::byte> mine, const Wait& wait);

}  // namespace tw::collective
