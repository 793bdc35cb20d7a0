// SPDX-License-Identifier: Apache-2.0
// What is called of libcuda.so.1, as the manual of CUDA's driver API declares it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tw::device::cuda {

enum class Error : int {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kNotReady = 600,
};
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Pointer = uint64_t;  // of 64-bit systems
struct IpcMemory {
  char reserved[64];
};

inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2, kHostAllocPortable = 1,
                          kIpcLazyPeerAccess = 1;
inline constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // attributes of devices
// Attributes of pointers, and what is said of the type of memory.
inline constexpr int kMemoryType = 2, kBufferId = 7, kIsManaged = 8, kDeviceOrdinal = 9,
                     kIpcCapable = 10, kRangeStart = 11, kRangeSize = 12;
inline constexpr unsigned kMemoryTypeHost = 1, kMemoryTypeDevice = 2;

// CUDA_MEMCPY2D.
struct Copy2D {
  struct End {
    size_t x = 0, y = 0;
    unsigned type = 0;
    void* host = nullptr;
    Pointer device = 0;
    void* array = nullptr;
    size_t pitch = 0;
  };
  End from, to;
  size_t width = 0, height = 0;
};

struct Functions {
  // FAILED_PRECONDITION: there is none, or it lacks a function.
  static Result<Functions> load(const char* soname);

  Error (*init)(unsigned flags) = nullptr;
  Error (*error_name)(Error error, const char** name) = nullptr;
  Error (*error_string)(Error error, const char** text) = nullptr;
  Error (*device_count)(int* count) = nullptr;
  Error (*device_get)(int* device, int ordinal) = nullptr;
  Error (*device_attribute)(int* value, int attribute, int device) = nullptr;
  Error (*primary_context_retain)(Context* context, int device) = nullptr;
  Error (*context_push)(Context context) = nullptr;
  Error (*context_pop)(Context* context) = nullptr;
  Error (*pointer_attributes)(unsigned count, int* attributes, void** values,
                              Pointer pointer) = nullptr;
  Error (*stream_create)(Stream* stream, unsigned flags) = nullptr;
  Error (*stream_destroy)(Stream stream) = nullptr;
  Error (*stream_query)(Stream stream) = nullptr;
  Error (*event_create)(Event* event, unsigned flags) = nullptr;
  Error (*event_destroy)(Event event) = nullptr;
  Error (*event_record)(Event event, Stream stream) = nullptr;
  Error (*event_query)(Event event) = nullptr;
  Error (*memcpy_async)(Pointer to, Pointer from, size_t bytes, Stream stream) = nullptr;
  Error (*memcpy_2d_async)(const Copy2D* copy, Stream stream) = nullptr;
  Error (*host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  Error (*host_free)(void* memory) = nullptr;
  Error (*ipc_get)(IpcMemory* handle, Pointer base) = nullptr;
  Error (*ipc_open)(Pointer* base, IpcMemory handle, unsigned flags) = nullptr;
  Error (*ipc_close)(Pointer base) = nullptr;
  Error (*module_load)(Module* module, const void* image) = nullptr;
  Error (*module_function)(Function* function, Module module, const char* name) = nullptr;
  Error (*launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  Stream stream, void** parameters, void** extra) = nullptr;
};

}  // namespace tw::device::cuda
