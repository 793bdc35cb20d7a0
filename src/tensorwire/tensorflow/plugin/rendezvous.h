// SPDX-License-Identifier: Apache-2.0
// Where TensorFlow's receive operations come by: tensors of other workers are fetched over a link,
// or by TensorFlow's own RecvTensor where there is none.
#pragma once

#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"

namespace tensorwire {

class RendezvousManager final : public tensorflow::BaseRendezvousMgr {
 public:
  using BaseRendezvousMgr::BaseRendezvousMgr;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step, const tensorflow::WorkerEnv* environment) override;
};

}  // namespace tensorwire
