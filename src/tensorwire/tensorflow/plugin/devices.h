// SPDX-License-Identifier: Apache-2.0
// Devices for a server whose process had its allocator before the plugin came.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tensorwire {

// The devices that a stock server would make, but those of the CPU allocate in the arena. They live
// for ever, like the servers that they are for.
absl::Status make_arena_devices(const tensorflow::ConfigProto& config, const std::string& task,
                                tensorflow::DeviceMgr** out);

}  // namespace tensorwire
