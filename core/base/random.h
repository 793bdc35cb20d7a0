// SPDX-License-Identifier: Apache-2.0
// Random bytes, of the kernel.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace tw {

// UNAVAILABLE when the kernel has no randomness to give.
Status fill_random(std::span<uint8_t> out);

}  // namespace tw
