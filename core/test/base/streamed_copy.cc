// SPDX-License-Identifier: Apache-2.0
#include "base/streamed_copy.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace tw {
namespace {

TEST_CASE("streamed copy: every byte arrives and none beside them, wherever both begin") {
  constexpr size_t kRoom = 512;
  std::vector<uint8_t> from(kRoom);
  std::iota(from.begin(), from.end(), uint8_t{1});
  for (const size_t at : {0u, 1u, 15u, 16u, 63u})
    for (const size_t to : {0u, 1u, 16u, 48u, 63u})
      for (const size_t size : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 300u}) {
        std::vector<uint8_t> found(kRoom, 0xee), expected = found;
        std::memcpy(expected.data() + to, from.data() + at, size);
        copy_streamed(reinterpret_cast<std::byte*>(found.data() + to),
                      reinterpret_cast<const std::byte*>(from.data() + at), size);
        CHECK(found == expected);
      }
}

}  // namespace
}  // namespace tw
