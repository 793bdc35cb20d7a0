// SPDX-License-Identifier: Apache-2.0
// What serving peers needs of TensorFlow's worker.
#pragma once

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace tensorwire {

class WorkerService {
 public:
  virtual const tensorflow::WorkerEnv& environment() const = 0;
  // Whether the worker can produce the tensor at all, as for TensorFlow's own RecvTensor, in memory
  // that the runtime can send.
  virtual absl::Status prepare(const std::string& key,
                               tensorflow::Rendezvous::ParsedKey* parsed) = 0;
  virtual void abort_step(int64_t step) = 0;

 protected:
  ~WorkerService() = default;
};

}  // namespace tensorwire
