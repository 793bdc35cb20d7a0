// SPDX-License-Identifier: Apache-2.0
// Devices made of the host, for tests. They are as unforgiving as real ones: the host cannot touch
// their memory (the addresses are of pages without any access), streams run late and in threads of
// their own, an address that is not a process's, or not any more, is an error that stays, and each
// function can be told to fail.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/driver.h"

namespace tw::test {

// What the processes of a host share: memory that was exported.
class FakeHost {
 public:
  using Block = std::vector<std::byte>;

 private:
  friend class FakeDriver;
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Block>> exported_;  // by the allocation's id, the handle
  uint64_t last_ = 0;                                  // id
  // Of whoever touches devices' memory. Ranks take their turns there by memory that each maps for
  // itself, in which a thread sanitizer sees no order.
  std::mutex bus_;
};

// The driver as one process has it. Streams begin each piece of work up to `delay_us` late.
class FakeDriver final : public device::Driver {
 public:
  FakeDriver(FakeHost& host, int devices, unsigned delay_us = 50, unsigned seed = 1);
  ~FakeDriver() override;

  // ---- what a program does with its devices ----
  // Filled with a pattern. An address that was freed is used again, by whichever device is next.
  std::byte* allocate(int device, size_t bytes, bool exportable = true);
  void free(std::byte* address);
  // Without a stream, at once.
  void write(std::byte* to, const void* from, size_t bytes);
  void read(void* to, const std::byte* from, size_t bytes);
  // Queues a write, as a kernel of the program's would be.
  void write_later(device::Stream stream, std::byte* to, std::vector<std::byte> bytes);
  // Nothing of the stream runs from now on, or does again.
  void hold(device::Stream stream, bool held);

  // ---- what a test wants of it ----
  // The call of the function after `others` more ends so. Functions by their names in Driver;
  // "stream": work that has begun, and then everything, as after an access to an illegal address.
  void fail(const std::string& function, Status how, int others = 0);
  int calls(const std::string& function);
  // Streams, events, and memory that were not given back.
  size_t leftovers();
  // Once nothing is queued any more: whether all memory that was used was there.
  Status health();

  int devices() const override { return devices_; }
  Result<device::Allocation> allocation_of(const void* pointer) override;
  Result<uint64_t> allocation_id(const void* pointer) override;
  Result<device::Stream> create_stream(int device) override;
  void destroy_stream(int device, device::Stream stream) override;
  Result<bool> idle(int device, device::Stream stream) override;
  Result<device::StreamEvent> create_event(int device) override;
  void destroy_event(int device, device::StreamEvent event) override;
  Status record(int device, device::StreamEvent event, device::Stream stream) override;
  Result<bool> happened(int device, device::StreamEvent event) override;
  Status upload(int device, std::byte* to, const std::byte* from, size_t bytes,
                device::Stream stream) override {
    return copy(device, to, from, bytes, stream);
  }
  Status copy(int device, std::byte* to, const std::byte* from, size_t bytes,
              device::Stream stream) override;
  Result<std::byte*> allocate_pinned(int device, size_t bytes) override;
  void free_pinned(int device, std::byte* memory) override;
  Result<device::IpcHandle> export_memory(int device, const std::byte* base) override;
  Result<std::byte*> import_memory(int device, const device::IpcHandle& handle) override;
  void close_memory(int device, std::byte* base) override;
  Result<device::Kernel> load(int device, const device::KernelSource& source) override;
  Status launch(int device, device::Kernel kernel, unsigned blocks, unsigned threads,
                const void* arguments, size_t arguments_size, device::Stream stream) override;

 private:
  struct Memory {
    std::shared_ptr<FakeHost::Block> block;
    int device = 0;
    bool exportable = false, imported = false;
    uint64_t id = 0;
  };
  using Marker = std::shared_ptr<bool>;  // whether the place was reached
  struct Queue {
    std::deque<std::function<void()>> work;
    bool held = false, ends = false, running = false;
    std::thread thread;
  };
  struct Injected {
    std::string function;
    Status how;
    int others;
  };

  // These are called with the lock.
  Status called(const char* function);
  device::Allocation allocation(const void* pointer) const;
  std::byte* reached(const std::byte* address, size_t bytes);  // null: it is not this process's
  std::byte* map(Memory memory, size_t bytes);
  Queue& queue(device::Stream stream);
  void push(device::Stream stream, std::function<void()> work);
  void broken(const std::string& what);

  void run(Queue& queue, unsigned seed);

  FakeHost& host_;
  const int devices_;
  const unsigned delay_us_, seed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uintptr_t, std::unique_ptr<Queue>> streams_;
  std::map<uintptr_t, Marker> events_;
  std::map<uintptr_t, Memory> memory_;
  std::map<size_t, std::vector<std::byte*>> unused_;  // reservations, by size
  std::map<uintptr_t, std::vector<std::byte>> pinned_;
  std::map<std::string, int> calls_;
  std::vector<Injected> injected_;
  Status broken_;
  uintptr_t last_ = 0;
  size_t pending_ = 0;
};

}  // namespace tw::test
