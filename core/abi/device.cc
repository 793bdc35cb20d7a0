// SPDX-License-Identifier: Apache-2.0
// The C ABI: devices.
#include "abi/device.h"

#include "abi/abi.h"
#include "device/cuda_driver.h"

namespace tw::abi {
Result<std::optional<collective::DevicePlace>> place_of(const tw_device* device, const void* in,
                                                        const void* out) {
  if (!device) return std::optional<collective::DevicePlace>();
  const auto driver = device::cuda_driver();
  if (!driver) return driver.status();
  return collective::place_of(**driver, device->ordinal, in, out,
                              device::Stream{reinterpret_cast<uintptr_t>(device->stream)});
}

}  // namespace tw::abi

using namespace tw;
using namespace tw::abi;

int tw_device_count(int* count, tw_status* status) try {
  const auto driver = device::cuda_driver();
  if (!driver) return report(status, driver.status());
  *count = (*driver)->devices();
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
