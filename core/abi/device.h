// SPDX-License-Identifier: Apache-2.0
// Where the arrays lie that the C ABI is given.
#pragma once

#include <optional>

#include "collective/device_place.h"
#include "tensorwire.h"

namespace tw::abi {

// Null: in the host's memory. FAILED_PRECONDITION: there is no driver for anything else.
Result<std::optional<collective::DevicePlace>> place_of(const tw_device* device, const void* in,
                                                        const void* out);

}  // namespace tw::abi
