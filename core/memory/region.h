// SPDX-License-Identifier: Apache-2.0
// How a run of bytes in an arena is named to another process: by numbers, never by a pointer.
#pragma once

#include <cstdint>

namespace tw {

struct RegionRef {
  uint32_t slab = 0;        // index in the owner's table of slabs
  uint32_t generation = 0;  // an index that is used again gets another generation
  uint64_t offset = 0;      // bytes from the start of the slab
  uint64_t length = 0;      // bytes

  friend bool operator==(const RegionRef&, const RegionRef&) = default;
};
static_assert(sizeof(RegionRef) == 24);

}  // namespace tw
