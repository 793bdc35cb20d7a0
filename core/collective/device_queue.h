// SPDX-License-Identifier: Apache-2.0
// A stream of a rank's own, and how a thread of the host waits for a stream.
#pragma once

#include "collective/members.h"
#include "device/driver.h"

namespace tw::collective {

// Not thread-safe. Only work that ends by itself is queued: nothing here waits for another stream.
class DeviceQueue {
 public:
  static Result<DeviceQueue> make(device::Driver& driver, int device);
  DeviceQueue(DeviceQueue&&) = default;
  DeviceQueue& operator=(DeviceQueue&&) = default;
  ~DeviceQueue() { settle(); }

  // For work that is queued now.
  device::Stream stream() {
    busy_ = true;
    return stream_.get();
  }
  Status copy(std::byte* to, const std::byte* from, size_t bytes);
  // From pinned memory.
  Status upload(std::byte* to, const std::byte* from, size_t bytes);

  // Puts the mark at the end of this stream, or of another one of the device.
  Status mark() { return mark(stream_.get()); }
  Status mark(device::Stream stream);
  // Until the mark has been reached. Errors are those of Fabric, and what went wrong on the device.
  Status await(const Members& members, const Wait& wait);
  // Until nothing of this stream uses memory any more, whatever became of it. False: a device that
  // does not get on with it has been given up, and memory that it may use must not be reused.
  bool settle();

 private:
  DeviceQueue(device::Driver& driver, int device, device::OwnedStream stream,
              device::OwnedEvent event)
      : driver_(&driver), device_(device), stream_(std::move(stream)), event_(std::move(event)) {}
  // Looks at the mark until then. True: it was reached, or `error` says why it never will be.
  bool look(Nanos until, Status& error);

  device::Driver* driver_;
  int device_;
  device::OwnedStream stream_;
  device::OwnedEvent event_;
  bool busy_ = false;  // something has been queued, and not been waited for
};

}  // namespace tw::collective
