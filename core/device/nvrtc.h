// SPDX-License-Identifier: Apache-2.0
// NVRTC, CUDA's compiler as a library, found at run time.
#pragma once

#include <vector>

#include "device/driver.h"

namespace tw::device {

// Code of a device of compute capability `architecture` / 10 . `architecture` % 10, such as 90, for
// the driver to load. It rounds each operation by itself, and keeps denormals. FAILED_PRECONDITION:
// there is no NVRTC, or none for such a device; INVALID_ARGUMENT: the program is wrong, and the
// text is what the compiler said.
Result<std::vector<char>> compile(const KernelSource& source, int architecture);

}  // namespace tw::device
