// SPDX-License-Identifier: Apache-2.0
// The runtime as the plugin sees it: the function table that the package hands over. The plugin
// never links to the runtime, because two copies of it would be two arenas.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorwire.h"

namespace tensorwire {

// Good from tensorwire_tensorflow_start() on, and for ever.
extern const tw_table* g_core;
inline const tw_table& core() { return *g_core; }

// TensorFlow's codes are gRPC's.
inline absl::Status status_of(int code, absl::string_view details) {
  return {static_cast<absl::StatusCode>(code), details};
}
inline absl::Status status_of(const tw_status& status) {
  return status_of(status.code, status.details);
}

// Smaller tensors are copied into a message at one end and out of it at the other: that costs less
// than a block of the arena and a lease.
inline constexpr size_t kSmall = 32 << 10;

// Smaller tensors that are lent are copied by their receiver: that costs less than a mapping of
// their own, which is made and ended by system calls that all threads of a process wait for.
inline constexpr size_t kSeparated = 256 << 10;

// Peers of one cluster trust each other with their memory anyway: a tensor is as large as it is.
inline constexpr int64_t kMaxMessage = int64_t{1} << 44;

// Sends nothing or one message.
inline constexpr tw_pairs kNoPairs{nullptr, 0};
inline constexpr tw_payload kNoPayload{};

}  // namespace tensorwire
