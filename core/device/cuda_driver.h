// SPDX-License-Identifier: Apache-2.0
// CUDA's driver, found at run time. Nothing of it is needed to compile, and nothing is loaded
// before somebody asks.
#pragma once

#include "device/driver.h"

namespace tw::device {

// Opened at the first call, and kept. FAILED_PRECONDITION: this host has no libcuda.so.1, one that
// is too old, or no device.
Result<Driver*> cuda_driver();

}  // namespace tw::device
