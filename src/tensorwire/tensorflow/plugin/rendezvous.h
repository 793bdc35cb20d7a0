// SPDX-License-Identifier: Apache-2.0
// Where TensorFlow's send and receive operations come by: tensors of other workers are fetched over
// a link, or by TensorFlow's own RecvTensor where there is none; those that are planned are sent
// ahead.
#pragma once

#include <memory>

#include "planned_sends.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"

namespace tensorwire {

class RendezvousManager final : public tensorflow::BaseRendezvousMgr {
 public:
  // `planned`: null, where nothing is.
  RendezvousManager(const tensorflow::WorkerEnv* environment, std::shared_ptr<PlannedSends> planned)
      : BaseRendezvousMgr(environment), planned_(std::move(planned)) {}

  void Cleanup(int64_t step) override;
  void CleanupAll() override;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step, const tensorflow::WorkerEnv* environment) override;

 private:
  const std::shared_ptr<PlannedSends> planned_;
};

}  // namespace tensorwire
