// SPDX-License-Identifier: Apache-2.0
// How an array is cut among ranks.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tw::collective {

// Parts begin at cache lines, where the array does.
inline constexpr size_t kLine = 64;

// Elements [begin, end).
struct Part {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

// What rank `i` of `ranks` reduces of `count` elements of `width` bytes.
inline Part part_of(size_t count, size_t width, int i, int ranks) {
  const size_t line = kLine / width, lines = (count + line - 1) / line;
  const auto cut = [&](int at) {
    return std::min(count, lines * static_cast<size_t>(at) / static_cast<size_t>(ranks) * line);
  };
  return {cut(i), cut(i + 1)};
}

}  // namespace tw::collective
