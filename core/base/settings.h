// SPDX-License-Identifier: Apache-2.0
// What a user can set for all links, whatever they go by: defaults, then TENSORWIRE_* (and the
// RDMA-TensorFlow guide's TF_RDMA_*) from the environment, read once when the runtime starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/setting.h"
#include "base/status.h"

namespace tw {

// What the thresholds of messages may be. A coalesced or eager message is copied through bounded
// staging; beyond these sizes the copy costs more than a rendezvous. A chunk may not exceed what a
// frame of the wire format carries.
inline constexpr setting::Size kCoalesceSizes{0, 1 << 20}, kEagerSizes{0, 1 << 20},
    kChunkSizes{64 << 10, 64 << 20};

struct Settings {
  size_t coalesce_bytes = 8 << 10;
  size_t eager_bytes = 16 << 10;
  size_t chunk_bytes = 4 << 20;
  // Whether the user has set them; not set by themselves.
  bool coalesce_given = false, eager_given = false, chunk_given = false;
  size_t buffer_bytes = size_t{1} << 30;
  // What may wait for a client that does not take its replies: as much as the arena is told to
  // hold; 1 GiB, if the arena has so much, where nobody says. Not set by itself.
  size_t unread_bytes = size_t{1} << 30;
  size_t pool_bytes = size_t{1} << 30;
  size_t shared_memory_bytes = size_t{1} << 30;
  size_t max_message_bytes = size_t{16} << 30;
  size_t stream_window_bytes = 16 << 20;
  Nanos spin = 200 * kMicrosecond;
  Nanos stall = 60 * kSecond;  // 0: never
  Nanos silence = 30 * kSecond;
  Nanos group_silence = kSecond;  // 0: as `silence`
  size_t trace_events = 0;
  std::string trace_folder, runtime_dir, link_tuning, tune_online = "off";
};

// A longer one leaves no room for a socket's address below it.
inline constexpr size_t kLongestRuntimeDir = 82;

// INVALID_ARGUMENT names the variable, what it holds and the permitted range.
Result<Settings> settings_from_environment();
void each_setting(const Settings& in_force, const VisitSetting& visit);

}  // namespace tw
