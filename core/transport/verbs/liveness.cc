// SPDX-License-Identifier: Apache-2.0
// The endpoint's half that finds out that a device has fallen silent. A reliable connection ends
// each request, by success or, once it has repeated it often enough, by an error; a device or
// driver that does neither would leave the link alive for ever.
#include <algorithm>

#include "base/text.h"
#include "transport/verbs/endpoint.h"

namespace tw::verbs {
namespace {

// A device may wait four times as long for an answer as it was told (InfiniBand Architecture
// Specification 1.4, 9.7.6.1.3, "Detecting a timeout"); and as much again.
constexpr Nanos kTimes = 8;
// Whatever the settings, for an emulated device on a busy host.
constexpr Nanos kLeast = kSecond;
// The slowest network on which a large request is still taken for one that goes on: 1 MB/s.
constexpr Nanos kForEachByte = kMicrosecond;

}  // namespace

Nanos Endpoint::patience() const {
  const Settings& settings = context_->settings();
  const Nanos answer = Nanos{4096} << settings.timeout;
  size_t bytes = 0;
  for (const auto& pair : pairs_) bytes = std::max(bytes, pair->bytes_under_way());
  return kLeast + kTimes * answer * (settings.retry_count + 1) +
         static_cast<Nanos>(bytes) * kForEachByte;
}

void Endpoint::expect_progress() {
  if (expecting_ || life_.stopped() || !life_.open() || !failure_.ok()) return;
  if (std::all_of(pairs_.begin(), pairs_.end(), [](const auto& pair) { return pair->idle(); }))
    return;
  const Nanos time = patience();
  expecting_ = background_.add_timer(
      now() + time, [self = Ref<Endpoint>::share(this), time] { self->check_progress(time); });
}

void Endpoint::check_progress(Nanos time) {
  {
    const MutexLock lock(mutex_);
    if (life_.stopped()) return;
  }
  poll(false);  // what has completed while this process did not run
  const MutexLock lock(mutex_);
  expecting_.reset();
  if (life_.stopped() || !life_.open() || !failure_.ok()) return;
  for (const auto& pair : pairs_) {
    if (pair->stalled())
      return fail({Code::kUnavailable, text({"RDMA device ", pair->rail().rail.device, ":",
                                             static_cast<uint32_t>(pair->rail().rail.port.number),
                                             " has neither completed nor failed a request for ",
                                             time / kSecond, " s"})});
    // SENDs that nobody waits for complete with the next request that somebody does wait for.
    if (!pair->idle() && pair->room(2)) post_empty_write(*pair, Posted::Kind::kProbe);
  }
  expect_progress();
}

}  // namespace tw::verbs
