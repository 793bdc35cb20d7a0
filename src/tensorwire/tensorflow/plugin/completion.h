// SPDX-License-Identifier: Apache-2.0
// Runs what waits for calls to end, on threads of the plugin's own: as on the threads of
// TensorFlow's gRPC, callbacks of TensorFlow's may block there. Core threads never run any.
#pragma once

#include <functional>

#include "core.h"

namespace tensorwire {

class Completion {
 public:
  virtual void call_ended() = 0;

 protected:
  ~Completion() = default;
};

// Once, when the call has ended.
void when_ended(tw_client_call* call, Completion* completion);

// On one of these threads, soon.
void run_soon(std::function<void()> task);

}  // namespace tensorwire
