// SPDX-License-Identifier: Apache-2.0
// Which protocol each segment of a message takes (AR-gRPC, HiPC'18, section IV): consecutive small
// segments are gathered in order into eager sends, larger ones go eagerly alone, the rest goes in
// bulk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/transport.h"

namespace tw {

// Segments [first, first + count) that share one eager send, or one bulk segment.
struct Step {
  uint32_t first;
  uint32_t count;
  bool bulk;
};

inline bool goes_in_bulk(size_t size, const Profile& profile) {
  return size > profile.eager_bytes && size > profile.coalesce_bytes;
}

// `size_of(i)` gives the bytes of segment i. Appends to `steps`.
template <class SizeOf>
void plan(uint32_t segments, SizeOf&& size_of, const Profile& profile, std::vector<Step>& steps) {
  size_t gathered = 0;
  bool open = false;  // the last step is an eager one that may still grow
  for (uint32_t i = 0; i < segments; ++i) {
    const size_t size = size_of(i);
    if (goes_in_bulk(size, profile)) {
      steps.push_back({i, 1, true});
      open = false;
      continue;
    }
    if (open && gathered + size <= profile.coalesce_bytes) {
      ++steps.back().count;
      gathered += size;
      continue;
    }
    steps.push_back({i, 1, false});
    gathered = size;
    open = size <= profile.coalesce_bytes;
  }
}

}  // namespace tw
