// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tw::test {

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;

}  // namespace tw::test
