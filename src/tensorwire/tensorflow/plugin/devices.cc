// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <memory>
#include <utility>
#include <vector>

#include "allocator.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorwire {

namespace tf = ::tensorflow;

absl::Status make_arena_devices(const tf::ConfigProto& config, const std::string& task,
                                tf::DeviceMgr** out) {
  tf::SessionOptions options;
  options.config = config;
  std::vector<std::unique_ptr<tf::Device>> devices;
  if (absl::Status status = tf::DeviceFactory::AddDevices(options, task, &devices); !status.ok())
    return status;
  for (std::unique_ptr<tf::Device>& device : devices) {
    const tf::DeviceAttributes attributes = device->attributes();
    if (attributes.device_type() != "CPU") continue;
    device = std::make_unique<tf::ThreadPoolDevice>(options, attributes.name(),
                                                    tf::Bytes(attributes.memory_limit()),
                                                    attributes.locality(), arena_allocator());
  }
  *out = new tf::DynamicDeviceMgr(std::move(devices));
  return absl::OkStatus();
}

}  // namespace tensorwire
