// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_functions.h"

#include <dlfcn.h>

#include <type_traits>

#include "base/text.h"

namespace tw::device::cuda {

Result<Functions> Functions::load(const char* soname) {
  // Never closed: it has threads of its own.
  void* const opened = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  if (!opened)
    return Status{
        Code::kFailedPrecondition,
        text({"CUDA needs ", soname,
              ", which comes with NVIDIA's driver and is not on this host: ", dlerror()})};
  Functions found;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
    if (!function && !missing) missing = name;
  };
  find(found.init, "cuInit");
  find(found.error_name, "cuGetErrorName");
  find(found.error_string, "cuGetErrorString");
  find(found.device_count, "cuDeviceGetCount");
  find(found.device_get, "cuDeviceGet");
  find(found.device_attribute, "cuDeviceGetAttribute");
  find(found.primary_context_retain, "cuDevicePrimaryCtxRetain");
  find(found.context_push, "cuCtxPushCurrent_v2");
  find(found.context_pop, "cuCtxPopCurrent_v2");
  find(found.pointer_attributes, "cuPointerGetAttributes");
  find(found.stream_create, "cuStreamCreate");
  find(found.stream_destroy, "cuStreamDestroy_v2");
  find(found.stream_query, "cuStreamQuery");
  find(found.event_create, "cuEventCreate");
  find(found.event_destroy, "cuEventDestroy_v2");
  find(found.event_record, "cuEventRecord");
  find(found.event_query, "cuEventQuery");
  find(found.memcpy_async, "cuMemcpyAsync");
  find(found.memcpy_2d_async, "cuMemcpy2DAsync_v2");
  find(found.host_alloc, "cuMemHostAlloc");
  find(found.host_free, "cuMemFreeHost");
  find(found.ipc_get, "cuIpcGetMemHandle");
  find(found.ipc_open, "cuIpcOpenMemHandle_v2");
  find(found.ipc_close, "cuIpcCloseMemHandle");
  find(found.module_load, "cuModuleLoadData");
  find(found.module_function, "cuModuleGetFunction");
  find(found.launch, "cuLaunchKernel");
  if (missing)
    return Status{Code::kFailedPrecondition, text({soname, " lacks ", missing,
                                                   ": NVIDIA's driver is too old, 11.2 or newer "
                                                   "is needed"})};
  return found;
}

}  // namespace tw::device::cuda
