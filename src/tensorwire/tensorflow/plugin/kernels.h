// SPDX-License-Identifier: Apache-2.0
// Kernels that take the place of TensorFlow's own on the CPU, see in_place.h.
#pragma once

namespace tensorwire {

// For kernels that TensorFlow makes from now on.
void register_kernels();

}  // namespace tensorwire
