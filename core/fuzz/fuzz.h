// SPDX-License-Identifier: Apache-2.0
// What the fuzzers share: inputs in memory of exactly their size, and properties that must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/status.h"

namespace tw::fuzz {

using Bytes = std::vector<std::byte>;

// Takes bytes off the front of the input; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(data, size) {}
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const uint8_t first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }
  // A copy on the heap, so that a read past its end is seen.
  Bytes take(size_t size) {
    Bytes out(size);
    for (auto& b : out) b = std::byte{byte()};
    return out;
  }
  Bytes rest() { return take(rest_.size()); }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const uint8_t> rest_;
};

// Not an assert: it has to hold in every build.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "broken property: %s\n", property);
  std::abort();
}

// A refusal names its reason in a sentence of a bounded length, safe for a log.
inline void require_sentence(const Status& status) {
  require(!status.ok(), "a refusal has a code");
  require(!status.details().empty() && status.details().size() < 1000, "a refusal has a sentence");
  for (const char c : status.details()) {
    require(c >= 0x20 && c < 0x7f, "a sentence is printable");
  }
}

}  // namespace tw::fuzz
