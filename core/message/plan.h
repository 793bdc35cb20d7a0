// SPDX-License-Identifier: Apache-2.0
// Which protocol each segment of a message takes (AR-gRPC, HiPC'18, section IV): consecutive small
// segments are gathered in order into eager sends, larger ones go eagerly alone, the rest goes in
// bulk.
//
// What goes in bulk is decided once for a message and kept with its segments. Whoever copies it
// into the arena, sends it, or keeps what has not been sent, has to know the same: memory that one
// lends and another one takes for copied would be let go of while it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "message/message.h"

namespace tw {

// Segments [first, first + count) that share one eager send, or one bulk segment.
struct Step {
  uint32_t first;
  uint32_t count;
  bool bulk;
};

inline bool goes_in_bulk(size_t size, size_t eager_bytes, size_t coalesce_bytes) {
  return size > eager_bytes && size > coalesce_bytes;
}

// By thresholds that may be others for the next message. What somebody has decided stays.
inline void decide(std::span<OutSegment> segments, size_t eager_bytes, size_t coalesce_bytes) {
  for (OutSegment& segment : segments)
    if (!segment.bulk) segment.bulk = goes_in_bulk(segment.size, eager_bytes, coalesce_bytes);
}

// `size_of(i)` gives the bytes of segment i, `bulk(i)` whether it goes so. Appends to `steps`.
template <class SizeOf, class IsBulk>
void plan(uint32_t segments, SizeOf&& size_of, IsBulk&& bulk, size_t coalesce_bytes,
          std::vector<Step>& steps) {
  size_t gathered = 0;
  bool open = false;  // the last step is an eager one that may still grow
  for (uint32_t i = 0; i < segments; ++i) {
    const size_t size = size_of(i);
    if (bulk(i)) {
      steps.push_back({i, 1, true});
      open = false;
      continue;
    }
    if (open && gathered + size <= coalesce_bytes) {
      ++steps.back().count;
      gathered += size;
      continue;
    }
    steps.push_back({i, 1, false});
    gathered = size;
    open = size <= coalesce_bytes;
  }
}

}  // namespace tw
