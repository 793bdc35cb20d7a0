// SPDX-License-Identifier: Apache-2.0
// All that the core knows of devices with memory of their own: what it calls of their driver. The
// system's is CUDA's (device/cuda_driver.h); tests have one of their own.
//
// Work is queued on streams: a stream's runs in its order, streams run beside each other, and an
// event is a place in a stream. What fails there shows when an event is looked at. An address of a
// device's memory is a number to the host, which must not touch what lies there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace tw::device {

// The driver's own handles. Stream 0 is its default stream.
enum class Stream : uintptr_t {};
enum class StreamEvent : uintptr_t {};
enum class Kernel : uintptr_t {};

// Where a pointer points to.
enum class Space : uint8_t {
  kHost,    // ordinary, pinned or managed memory: the host can touch it
  kDevice,  // it cannot
};

struct Allocation {
  Space space = Space::kHost;
  int device = 0;                   // whose memory it is
  const std::byte* base = nullptr;  // where the allocation begins; null: the driver knows of none
  size_t size = 0;
  bool exportable = false;  // other processes can map it
  uint64_t id = 0;          // no other allocation of the process has it, or has had it
};

// A process hands it to others of its host, who map the allocation with it.
using IpcHandle = std::array<std::byte, 64>;

// A kernel: a program's text, macros that it is compiled with ("NAME=VALUE"), and the function.
struct KernelSource {
  const char* text;
  std::span<const std::string> macros;
  const char* function;
};

// Thread-safe. `device` is a number below devices(). Errors: RESOURCE_EXHAUSTED (no memory),
// FAILED_PRECONDITION (something is missing on this host; says what), INTERNAL (what the driver
// said, earlier work's errors among it).
class Driver {
 public:
  virtual ~Driver() = default;

  virtual int devices() const = 0;
  // Of memory that the driver does not know it is the host's. It answers at once.
  virtual Result<Allocation> allocation_of(const void* pointer) = 0;
  // The id alone, which takes less; 0 where the driver knows of no allocation.
  virtual Result<uint64_t> allocation_id(const void* pointer) = 0;

  virtual Result<Stream> create_stream(int device) = 0;
  virtual void destroy_stream(int device, Stream stream) = 0;
  // Whether all that was queued on it is over.
  virtual Result<bool> idle(int device, Stream stream) = 0;
  virtual Result<StreamEvent> create_event(int device) = 0;
  virtual void destroy_event(int device, StreamEvent event) = 0;
  // The event is now this place in the stream.
  virtual Status record(int device, StreamEvent event, Stream stream) = 0;
  // Whether its place has been reached; so it has while nothing was recorded.
  virtual Result<bool> happened(int device, StreamEvent event) = 0;

  // Queues a copy between any two of: the device's memory, another one's that it reaches, and
  // pinned memory.
  virtual Status copy(int device, std::byte* to, const std::byte* from, size_t bytes,
                      Stream stream) = 0;

  // The same from pinned memory to the device's own. One of a few bytes, too, does not wait until
  // other processes let go of the device.
  virtual Status upload(int device, std::byte* to, const std::byte* from, size_t bytes,
                        Stream stream) = 0;

  // Memory of the host that devices copy from and to without help of a processor.
  virtual Result<std::byte*> allocate_pinned(int device, size_t bytes) = 0;
  virtual void free_pinned(int device, std::byte* memory) = 0;

  // Of the allocation that begins at `base`, for as long as that is not freed. That it is always
  // the same one, and another one for whatever is allocated there later, was observed of CUDA's
  // driver, which promises neither.
  virtual Result<IpcHandle> export_memory(int device, const std::byte* base) = 0;
  // Where the allocation of another process begins here. What its owner frees before close_memory()
  // stays until then.
  virtual Result<std::byte*> import_memory(int device, const IpcHandle& handle) = 0;
  virtual void close_memory(int device, std::byte* base) = 0;

  // Compiled and loaded, for as long as the process runs.
  virtual Result<Kernel> load(int device, const KernelSource& source) = 0;
  // Queues blocks * threads runs of it. `arguments` is the value of its one parameter.
  virtual Status launch(int device, Kernel kernel, unsigned blocks, unsigned threads,
                        const void* arguments, size_t arguments_size, Stream stream) = 0;
};

// What is given back when this ends.
template <class Handle, void (Driver::*give_back)(int, Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(Driver& driver, int device, Handle handle)
      : driver_(&driver), device_(device), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)),
        device_(other.device_),
        handle_(other.handle_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (driver_) (driver_->*give_back)(device_, handle_);
  }

  Handle get() const { return handle_; }
  // It is never given back: work that may still use it is queued.
  void abandon() { driver_ = nullptr; }

 private:
  Driver* driver_ = nullptr;
  int device_ = 0;
  Handle handle_{};
};

using OwnedStream = Owned<Stream, &Driver::destroy_stream>;
using OwnedEvent = Owned<StreamEvent, &Driver::destroy_event>;
using PinnedMemory = Owned<std::byte*, &Driver::free_pinned>;
using ImportedMemory = Owned<std::byte*, &Driver::close_memory>;

}  // namespace tw::device
