// SPDX-License-Identifier: Apache-2.0
// The C ABI: devices with memory of their own, which are CUDA's. Its driver is opened by the first
// call that needs it.
#ifndef TENSORWIRE_DEVICE_H
#define TENSORWIRE_DEVICE_H

#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

// How many there are. FAILED_PRECONDITION: this host has no driver, or no device; says which.
int tw_device_count(int* count, tw_status* status);

// Where arrays lie, and when they are ready.
typedef struct tw_device {
  int32_t ordinal;  // CUDA's number of the device; -1: the driver is asked
  void* stream;     // a CUstream or cudaStream_t: they are ready after what is queued there now
} tw_device;

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_DEVICE_H
