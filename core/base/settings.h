// What a user can set: defaults, then TENSORWIRE_* (and the RDMA-TensorFlow guide's TF_RDMA_*) from
// the environment, read once when the runtime starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace tw {

struct Settings {
  size_t coalesce_bytes = 8 << 10;  // TENSORWIRE_COALESCE_BYTES, TF_RDMA_ACC_SIZE
  size_t eager_bytes = 16 << 10;    // TENSORWIRE_EAGER_BYTES
  size_t chunk_bytes = 4 << 20;     // TENSORWIRE_CHUNK_BYTES, TF_RDMA_CHUNK_SIZE
  size_t buffer_bytes =
      size_t{1} << 30;  // TENSORWIRE_BUFFER_BYTES, TF_RDMA_BUF_SIZE: cap of the arena
  size_t pool_bytes = size_t{1} << 30;  // TENSORWIRE_POOL_BYTES: recycled receive buffers kept
  size_t max_message_bytes = size_t{16} << 30;  // TENSORWIRE_MAX_MESSAGE_BYTES
  size_t stream_window_bytes = 16 << 20;        // TENSORWIRE_STREAM_WINDOW_BYTES
  size_t ring_bytes = 256 << 10;        // TENSORWIRE_RING_BYTES: each direction of a shm link
  Nanos spin = 50 * kMicrosecond;       // TENSORWIRE_SPIN_US
  std::string tcp_congestion = "auto";  // TENSORWIRE_TCP_CONGESTION: auto | system | <name>
};

// INVALID_ARGUMENT names the variable, what it holds and the permitted range.
Result<Settings> settings_from_environment();

}  // namespace tw
