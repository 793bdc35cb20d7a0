// SPDX-License-Identifier: Apache-2.0
// What a user can set: defaults, then TENSORWIRE_* (and the RDMA-TensorFlow guide's TF_RDMA_*) from
// the environment, read once when the runtime starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace tw {

struct Settings {
  size_t coalesce_bytes = 8 << 10;  // TENSORWIRE_COALESCE_BYTES, TF_RDMA_ACC_SIZE
  size_t eager_bytes = 16 << 10;    // TENSORWIRE_EAGER_BYTES
  size_t chunk_bytes = 4 << 20;     // TENSORWIRE_CHUNK_BYTES, TF_RDMA_CHUNK_SIZE
  // TENSORWIRE_BUFFER_BYTES, TF_RDMA_BUF_SIZE: cap of the arena; else a share of the memory
  size_t buffer_bytes = size_t{1} << 30;
  // What may wait for a client that does not take its replies: as much as the arena is told to
  // hold; 1 GiB, if the arena has so much, where nobody says.
  size_t unread_bytes = size_t{1} << 30;
  // TENSORWIRE_POOL_BYTES: recycled receive buffers kept; else as unread_bytes, and 1 GiB at least
  // where the arena's size is set
  size_t pool_bytes = size_t{1} << 30;
  size_t max_message_bytes = size_t{16} << 30;  // TENSORWIRE_MAX_MESSAGE_BYTES
  size_t stream_window_bytes = 16 << 20;        // TENSORWIRE_STREAM_WINDOW_BYTES
  size_t ring_bytes = 256 << 10;        // TENSORWIRE_RING_BYTES: each direction of a shm link
  Nanos spin = 50 * kMicrosecond;       // TENSORWIRE_SPIN_US
  Nanos stall = 60 * kSecond;           // TENSORWIRE_STALL_SECONDS; 0: never
  std::string tcp_congestion = "auto";  // TENSORWIRE_TCP_CONGESTION: auto | system | <name>
  size_t trace_events = 0;              // TENSORWIRE_TRACE: protocol steps kept for each link
  std::string trace_folder;             // TENSORWIRE_TRACE_FOLDER: where ended links leave them
  // TENSORWIRE_RUNTIME_DIR: where servers make their sockets for shared memory, and where clients
  // look for them that do not find them where the server has them. Empty: XDG_RUNTIME_DIR or /tmp
  std::string runtime_dir;

  // RDMA ports, "mlx5_0,mlx5_1:2": without a port number the first active one; several share each
  // link. Empty: the closest, then the fastest. TENSORWIRE_VERBS_DEVICE, TF_RDMA_DEV_NAME
  std::vector<std::string> verbs_devices;
  int verbs_gid_index = -1;           // TENSORWIRE_VERBS_GID_INDEX; -1: chosen
  uint16_t verbs_pkey_index = 0;      // TENSORWIRE_VERBS_PKEY_INDEX: of the partition key
  uint32_t verbs_mtu = 0;             // TENSORWIRE_VERBS_MTU: bytes; 0: the port's active one
  uint8_t verbs_service_level = 0;    // TENSORWIRE_VERBS_SERVICE_LEVEL
  uint8_t verbs_traffic_class = 0;    // TENSORWIRE_VERBS_TRAFFIC_CLASS
  uint32_t verbs_queue_depth = 64;    // TENSORWIRE_VERBS_QUEUE_DEPTH: requests of a queue pair
  uint8_t verbs_timeout = 16;         // TENSORWIRE_VERBS_TIMEOUT: 4.096 us x 2^n for an answer
  uint8_t verbs_retry_count = 6;      // TENSORWIRE_VERBS_RETRY_COUNT: then the link is lost
  uint32_t verbs_inline_bytes = 128;  // TENSORWIRE_VERBS_INLINE_BYTES: no buffer is needed
  uint32_t verbs_qps = 1;             // TENSORWIRE_VERBS_QPS: queue pairs per rail and link
  uint32_t verbs_cqs = 1;             // TENSORWIRE_VERBS_CQS: completion queues per device
};

// A longer one leaves no room for a socket's address below it.
inline constexpr size_t kLongestRuntimeDir = 82;

// INVALID_ARGUMENT names the variable, what it holds and the permitted range.
Result<Settings> settings_from_environment();

}  // namespace tw
