// SPDX-License-Identifier: Apache-2.0
// What users can set for shared memory beside what all transports share.
#pragma once

#include "base/settings.h"

namespace tw::shm {

struct Settings : tw::Settings {
  size_t ring_bytes = 256 << 10;
};

inline constexpr SettingOf<Settings> kSettings[] = {
    {&Settings::ring_bytes,
     {"ring_bytes", "TENSORWIRE_RING_BYTES",
      setting::Size{16 << 10, 64 << 20, setting::Shape::kPowerOfTwo},
      "each direction of a link over shared memory"}},
};

}  // namespace tw::shm
