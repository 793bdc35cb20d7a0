// SPDX-License-Identifier: Apache-2.0
// Where the arrays of an operation lie, if not in the host's memory.
#pragma once

#include <optional>

#include "device/driver.h"

namespace tw::collective {

struct DevicePlace {
  device::Driver* driver;
  int device;
  device::Stream stream;  // the arrays are ready after what is queued on it now
};

// Asks the driver about the arrays, once where both are in one allocation of a device; null: there
// is none. Nothing: they lie in the host's memory.
// INVALID_ARGUMENT: one lies here, the other one there.
Result<std::optional<DevicePlace>> place_of(device::Driver& driver, const void* in, const void* out,
                                            device::Stream stream);
// The same for a caller who names the device, and knows that they lie there; nobody is asked then.
// A negative one: the driver is asked. INVALID_ARGUMENT: there is no such device.
Result<std::optional<DevicePlace>> place_of(device::Driver& driver, int device, const void* in,
                                            const void* out, device::Stream stream);

}  // namespace tw::collective
