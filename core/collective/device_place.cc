// SPDX-License-Identifier: Apache-2.0
#include "collective/device_place.h"

#include "base/text.h"

namespace tw::collective {
namespace {

bool holds(const device::Allocation& allocation, const void* array) {
  const auto begin = reinterpret_cast<uintptr_t>(allocation.base);
  return allocation.space == device::Space::kDevice &&
         reinterpret_cast<uintptr_t>(array) - begin < allocation.size;
}

std::string told(const device::Allocation& where) {
  return where.space == device::Space::kHost ? "in the host's memory"
                                             : text({"on device ", where.device});
}

}  // namespace

Result<std::optional<DevicePlace>> place_of(device::Driver& driver, const void* in, const void* out,
                                            device::Stream stream) {
  std::optional<device::Allocation> found;
  for (const void* array : {in, out}) {
    if (array == nullptr || (found && holds(*found, array))) continue;
    const auto where = driver.allocation_of(array);
    if (!where) return where.status();
    if (found && (found->space != where->space || found->device != where->device))
      return Status{Code::kInvalidArgument, text({"one array of the operation lies ", told(*found),
                                                  ", the other one ", told(*where)})};
    found = *where;
  }
  if (!found || found->space == device::Space::kHost) return std::optional<DevicePlace>();
  return std::optional(DevicePlace{&driver, found->device, stream});
}

Result<std::optional<DevicePlace>> place_of(device::Driver& driver, int device, const void* in,
                                            const void* out, device::Stream stream) {
  if (device < 0) return place_of(driver, in, out, stream);
  if (device >= driver.devices())
    return Status{Code::kInvalidArgument,
                  text({"there is no device ", device, " among ", driver.devices()})};
  return std::optional(DevicePlace{&driver, device, stream});
}

}  // namespace tw::collective
