// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_driver.h"

#include <bit>
#include <iterator>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/mutex.h"
#include "base/text.h"
#include "device/cuda_functions.h"
#include "device/nvrtc.h"

namespace tw::device {
namespace {

using cuda::Error;

template <class Handle>
auto native(Handle handle) {
  if constexpr (std::is_same_v<Handle, Stream>)
    return reinterpret_cast<cuda::Stream>(handle);
  else if constexpr (std::is_same_v<Handle, StreamEvent>)
    return reinterpret_cast<cuda::Event>(handle);
  else
    return reinterpret_cast<cuda::Function>(handle);
}
cuda::Pointer number(const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
std::byte* pointer(cuda::Pointer number) { return std::bit_cast<std::byte*>(number); }

class CudaDriver final : public Driver {
 public:
  CudaDriver(const cuda::Functions& functions, int devices)
      : cuda_(functions), devices_(devices), contexts_(static_cast<size_t>(devices)) {}

  int devices() const override { return devices_; }

  Result<Allocation> allocation_of(const void* pointer) override {
    unsigned type = 0, managed = 0, exportable = 0;
    int ordinal = 0;
    cuda::Pointer base = 0;
    size_t size = 0;
    unsigned long long id = 0;
    int attributes[] = {cuda::kMemoryType, cuda::kIsManaged,  cuda::kDeviceOrdinal,
                        cuda::kIpcCapable, cuda::kRangeStart, cuda::kRangeSize,
                        cuda::kBufferId};
    void* values[] = {&type, &managed, &ordinal, &exportable, &base, &size, &id};
    const Error error = cuda_.pointer_attributes(std::size(attributes), attributes, values,
                                                 reinterpret_cast<uintptr_t>(pointer));
    if (error != Error::kSuccess) return failed("cuPointerGetAttributes", error);
    Allocation found;
    found.base = device::pointer(base);
    found.size = size;
    if (type != cuda::kMemoryTypeDevice || managed != 0) return found;
    found.space = Space::kDevice;
    found.device = ordinal;
    found.exportable = exportable != 0;
    found.id = id;
    return found;
  }

  Result<uint64_t> allocation_id(const void* pointer) override {
    unsigned long long id = 0;
    int attribute = cuda::kBufferId;
    void* value = &id;
    const Error error =
        cuda_.pointer_attributes(1, &attribute, &value, reinterpret_cast<uintptr_t>(pointer));
    if (error != Error::kSuccess) return failed("cuPointerGetAttributes", error);
    return uint64_t{id};
  }

  Result<Stream> create_stream(int device) override {
    return made<Stream, cuda::Stream>(device, "cuStreamCreate", [&](cuda::Stream* stream) {
      return cuda_.stream_create(stream, cuda::kStreamNonBlocking);
    });
  }
  void destroy_stream(int device, Stream stream) override {
    give_back(device, [&] { return cuda_.stream_destroy(native(stream)); });
  }
  Result<bool> idle(int device, Stream stream) override {
    return reached(device, "cuStreamQuery", [&] { return cuda_.stream_query(native(stream)); });
  }
  Result<StreamEvent> create_event(int device) override {
    return made<StreamEvent, cuda::Event>(device, "cuEventCreate", [&](cuda::Event* event) {
      return cuda_.event_create(event, cuda::kEventDisableTiming);
    });
  }
  void destroy_event(int device, StreamEvent event) override {
    give_back(device, [&] { return cuda_.event_destroy(native(event)); });
  }
  Status record(int device, StreamEvent event, Stream stream) override {
    return on(device, "cuEventRecord",
              [&] { return cuda_.event_record(native(event), native(stream)); });
  }
  Result<bool> happened(int device, StreamEvent event) override {
    return reached(device, "cuEventQuery", [&] { return cuda_.event_query(native(event)); });
  }

  Status copy(int device, std::byte* to, const std::byte* from, size_t bytes,
              Stream stream) override {
    return on(device, "cuMemcpyAsync",
              [&] { return cuda_.memcpy_async(number(to), number(from), bytes, native(stream)); });
  }

  // A copy of up to 20 KiB is work for which the process needs a turn of the device. One of two
  // rows is not, as larger ones are not, and takes about as long. Seen of release 580: 274 us
  // and 9.5 us while another process is at work.
  Status upload(int device, std::byte* to, const std::byte* from, size_t bytes,
                Stream stream) override {
    constexpr size_t kLarge = 32 << 10;
    if (bytes >= kLarge || bytes % 2 != 0) return copy(device, to, from, bytes, stream);
    const size_t width = bytes / 2;
    cuda::Copy2D rows;
    rows.from.type = cuda::kMemoryTypeHost;
    rows.from.host = const_cast<std::byte*>(from);
    rows.to.type = cuda::kMemoryTypeDevice;
    rows.to.device = number(to);
    rows.from.pitch = rows.to.pitch = rows.width = width;
    rows.height = 2;
    return on(device, "cuMemcpy2DAsync",
              [&] { return cuda_.memcpy_2d_async(&rows, native(stream)); });
  }

  Result<std::byte*> allocate_pinned(int device, size_t bytes) override {
    void* memory = nullptr;
    Status status = on(device, "cuMemHostAlloc",
                       [&] { return cuda_.host_alloc(&memory, bytes, cuda::kHostAllocPortable); });
    if (!status.ok()) return status;
    return static_cast<std::byte*>(memory);
  }
  void free_pinned(int device, std::byte* memory) override {
    give_back(device, [&] { return cuda_.host_free(memory); });
  }

  Result<IpcHandle> export_memory(int device, const std::byte* base) override {
    cuda::IpcMemory handle;
    Status status =
        on(device, "cuIpcGetMemHandle", [&] { return cuda_.ipc_get(&handle, number(base)); });
    if (!status.ok()) return status;
    return std::bit_cast<IpcHandle>(handle);
  }
  Result<std::byte*> import_memory(int device, const IpcHandle& handle) override {
    cuda::Pointer base = 0;
    Status status = on(device, "cuIpcOpenMemHandle", [&] {
      return cuda_.ipc_open(&base, std::bit_cast<cuda::IpcMemory>(handle),
                            cuda::kIpcLazyPeerAccess);
    });
    if (!status.ok()) return status;
    return pointer(base);
  }
  void close_memory(int device, std::byte* base) override {
    give_back(device, [&] { return cuda_.ipc_close(number(base)); });
  }

  Result<Kernel> load(int device, const KernelSource& source) override {
    auto architecture = architecture_of(device);
    if (!architecture) return architecture.status();
    auto code = compile(source, *architecture);
    if (!code) return code.status();
    cuda::Module module = nullptr;
    cuda::Function function = nullptr;
    Status status =
        on(device, "cuModuleLoadData", [&] { return cuda_.module_load(&module, code->data()); });
    if (status.ok())
      status = on(device, "cuModuleGetFunction",
                  [&] { return cuda_.module_function(&function, module, source.function); });
    if (!status.ok()) return status;
    return Kernel{reinterpret_cast<uintptr_t>(function)};
  }
  Status launch(int device, Kernel kernel, unsigned blocks, unsigned threads, const void* arguments,
                size_t, Stream stream) override {
    void* parameters[] = {const_cast<void*>(arguments)};  // it reads them
    return on(device, "cuLaunchKernel", [&] {
      return cuda_.launch(native(kernel), blocks, 1, 1, threads, 1, 1, 0, native(stream),
                          parameters, nullptr);
    });
  }

 private:
  Status failed(const char* function, Error error) const {
    const char *name = nullptr, *said = nullptr;
    cuda_.error_name(error, &name);
    cuda_.error_string(error, &said);
    return {error == Error::kOutOfMemory ? Code::kResourceExhausted : Code::kInternal,
            text({function, " failed: ", name ? name : "an unknown error",
                  said ? text({" (", said, ")"}) : std::string()})};
  }

  // What CUDA's runtime uses, too, and with it the frameworks. Retained for ever.
  Result<cuda::Context> context(int device) {
    if (device < 0 || device >= devices())
      return Status{Code::kInvalidArgument,
                    text({"there is no device ", device, " among ", devices()})};
    const MutexLock lock(mutex_);
    cuda::Context& known = contexts_[static_cast<size_t>(device)];
    if (known) return known;
    int handle = 0;
    Error error = cuda_.device_get(&handle, device);
    if (error != Error::kSuccess) return failed("cuDeviceGet", error);
    error = cuda_.primary_context_retain(&known, handle);
    if (error != Error::kSuccess) return failed("cuDevicePrimaryCtxRetain", error);
    return known;
  }

  // Calls it in the device's context, and leaves the thread's own as it was.
  template <class Call>
  Status on(int device, const char* function, Call&& call) {
    auto entered = context(device);
    if (!entered) return entered.status();
    Error error = cuda_.context_push(*entered);
    if (error != Error::kSuccess) return failed("cuCtxPushCurrent", error);
    error = call();
    cuda::Context left = nullptr;
    cuda_.context_pop(&left);
    return error == Error::kSuccess ? Status() : failed(function, error);
  }
  template <class Call>
  Result<bool> reached(int device, const char* function, Call&& call) {
    bool ready = true;
    Status status = on(device, function, [&] {
      const Error error = call();
      ready = error != Error::kNotReady;
      return ready ? error : Error::kSuccess;
    });
    if (!status.ok()) return status;
    return ready;
  }
  template <class Handle, class Native, class Make>
  Result<Handle> made(int device, const char* function, Make&& make) {
    Native handle = nullptr;
    Status status = on(device, function, [&] { return make(&handle); });
    if (!status.ok()) return status;
    return Handle{reinterpret_cast<uintptr_t>(handle)};
  }
  // An error here is one of earlier work, which whoever queued that has seen.
  template <class Call>
  void give_back(int device, Call&& call) {
    static_cast<void>(on(device, "", call));
  }

  Result<int> architecture_of(int device) {
    int handle = 0, major = 0, minor = 0;
    Error error = cuda_.device_get(&handle, device);
    if (error == Error::kSuccess)
      error = cuda_.device_attribute(&major, cuda::kCapabilityMajor, handle);
    if (error == Error::kSuccess)
      error = cuda_.device_attribute(&minor, cuda::kCapabilityMinor, handle);
    if (error != Error::kSuccess) return failed("cuDeviceGetAttribute", error);
    return 10 * major + minor;
  }

  const cuda::Functions cuda_;
  const int devices_;
  Mutex mutex_;  // guards what follows; no other lock is taken inside
  std::vector<cuda::Context> contexts_ TW_GUARDED_BY(mutex_);  // by device; null: not used yet
};

Result<Driver*> open() {
  auto functions = cuda::Functions::load("libcuda.so.1");
  if (!functions) return functions.status();
  int count = 0;
  Error error = functions->init(0);
  if (error == Error::kSuccess) error = functions->device_count(&count);
  if (error != Error::kSuccess || count == 0) {
    const char* said = nullptr;
    functions->error_string(error == Error::kSuccess ? Error::kNoDevice : error, &said);
    return Status{Code::kFailedPrecondition,
                  text({"CUDA has no device here: ", said ? said : "an unknown error"})};
  }
  // Threads may use it for as long as the process runs.
  return std::make_unique<CudaDriver>(*functions, count).release();
}

}  // namespace

Result<Driver*> cuda_driver() {
  static const Result<Driver*> opened = open();
  return opened;
}

}  // namespace tw::device
