// SPDX-License-Identifier: Apache-2.0
#include "collective/device_queue.h"

#include "base/text.h"
#include "engine/spin.h"

namespace tw::collective {

Result<DeviceQueue> DeviceQueue::make(device::Driver& driver, int device) {
  auto stream = driver.create_stream(device);
  if (!stream) return stream.status();
  device::OwnedStream own(driver, device, *stream);
  auto event = driver.create_event(device);
  if (!event) return event.status();
  return DeviceQueue(driver, device, std::move(own), device::OwnedEvent(driver, device, *event));
}

Status DeviceQueue::copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return {};
  return driver_->copy(device_, to, from, bytes, stream());
}

Status DeviceQueue::upload(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return {};
  return driver_->upload(device_, to, from, bytes, stream());
}

Status DeviceQueue::mark(device::Stream stream) {
  return driver_->record(device_, event_.get(), stream);
}

// The driver's own waits end by nothing but the device. Most of ours end before the first nap.
bool DeviceQueue::look(Nanos until, Status& error) {
  constexpr Nanos kPolls = 50 * kMicrosecond;
  constexpr timespec kNap{0, 20 * kMicrosecond};
  const Nanos first_nap = now() + kPolls;
  for (;;) {
    const auto reached = driver_->happened(device_, event_.get());
    if (!reached) error = reached.status();
    if (!reached || *reached) return true;
    const Nanos time = now();
    if (time >= until) return false;
    if (time < first_nap)
      cpu_relax();
    else
      nanosleep(&kNap, nullptr);
  }
}

Status DeviceQueue::await(const Members& members, const Wait& wait) {
  Status error;
  Status waited = wait_in_slices(members, wait, [&](Nanos until) { return look(until, error); });
  if (waited.code() == Code::kDeadlineExceeded)
    return {waited.code(), text({"device ", device_, " of ", members.name(members.rank()),
                                 " has not come to it in time: its stream is busy"})};
  if (waited.ok() && error.ok()) busy_ = false;
  return waited.ok() ? error : waited;
}

bool DeviceQueue::settle() {
  if (!busy_) return true;
  constexpr Nanos kPatience = 10 * kSecond;
  Status error;
  // What broke a stream ends what was queued on it, too.
  const bool over = !mark().ok() || look(deadline_after(kPatience), error);
  busy_ = false;
  if (!over) {
    stream_.abandon();
    event_.abandon();
  }
  return over;
}

}  // namespace tw::collective
