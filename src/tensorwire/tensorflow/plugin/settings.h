// SPDX-License-Identifier: Apache-2.0
// What the user may set for the plugin, asked of the runtime once, when it starts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorwire.h"

namespace tensorwire {

struct Settings {
  bool enabled = true;   // TF_RDMA_ENABLED: false leaves everything to TensorFlow's own gRPC
  std::string required;  // the transport that TENSORWIRE_TRANSPORT names; empty: any
  bool arena = true;     // TENSORWIRE_TF_ARENA: whether TensorFlow allocates in the arena; all that
  bool traced =
      false;  // is large (auto), or what the sites allocate whose tensors are sent (traced)
  bool groups = true;  // TENSORWIRE_TF_COLLECTIVES: whether they go by groups of ranks
  bool plans = false;  // TENSORWIRE_TF_PLAN: whether tensors of each step are sent ahead
};

// Also sets which transports are permitted. INVALID_ARGUMENT names the variable, what it holds and
// what is permitted.
absl::Status read_settings(const tw_table& table);
// Good after read_settings().
const Settings& settings();

}  // namespace tensorwire
