// SPDX-License-Identifier: Apache-2.0
// The C ABI: devices.
#include "abi/device.h"

#include <atomic>
#include <memory>

#include "abi/abi.h"
#include "base/text.h"
#include "device/cuda_driver.h"

namespace tw::abi {
namespace {

// What is known of pointers; null while nobody asked.
std::atomic<device::PointerCache*> g_pointers{nullptr};

device::PointerCache& pointers(device::Driver& driver) {
  // For as long as the process runs, as the driver.
  static device::PointerCache* const made =
      std::make_unique<device::PointerCache>(driver).release();
  g_pointers.store(made, std::memory_order_release);
  return *made;
}

}  // namespace

Result<std::optional<collective::DevicePlace>> place_of(const tw_device* device, const void* in,
                                                        const void* out) {
  if (!device) return std::optional<collective::DevicePlace>();
  const auto driver = device::cuda_driver();
  if (!driver) return driver.status();
  if (device->ordinal >= (*driver)->devices())
    return Status{Code::kInvalidArgument,
                  text({"there is no device ", device->ordinal, " among ", (*driver)->devices()})};
  const device::Stream stream{reinterpret_cast<uintptr_t>(device->stream)};
  if (device->ordinal >= 0)
    return std::optional(collective::DevicePlace{*driver, device->ordinal, stream});
  return collective::place_of(**driver, pointers(**driver), in, out, stream);
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

void tw_device_forget(const void* address, uint64_t size) {
  if (device::PointerCache* const known = g_pointers.load(std::memory_order_acquire))
    known->forget(address, size);
}
