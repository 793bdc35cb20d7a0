// SPDX-License-Identifier: Apache-2.0
// One request while it is served. It is answered once at most, on whichever thread has the answer:
// TensorFlow forgets those of steps that it is never told to run.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/common_runtime/buf_rendezvous.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorwire {

class DataServer;

class Served final : public std::enable_shared_from_this<Served> {
 public:
  Served(DataServer* server, tw_server_call* call, int64_t step);
  ~Served();

  tw_server_call* call() const { return call_; }
  uint64_t id() const { return id_; }
  int64_t step() const { return step_; }
  bool answered() const { return answered_.load(); }
  // Whether a tensor is copied, to where the peer can read it, before it is sent. Where the
  // link does not lend, it goes straight into the socket.
  bool copies(const tensorflow::Tensor& tensor) const;

  void answer(const absl::Status& status);
  // Lends the tensor until the peer has read it.
  void answer(const tensorflow::Tensor& tensor, bool dead);
  // The tensor is on the stream of the peer's plan.
  void answer_pushed();
  // Takes the hook over, and tells its producer when the peer has read its buffer.
  void answer(tensorflow::BufRendezvous::Hook* hook);
  // Its peer waits no more: it has the answer, or it is gone, and then an answer may still come.
  void settle();

 private:
  friend class DataServer;
  void finish(const absl::Status& status, tw_payload payload);

  DataServer* const server_;
  tw_server_call* const call_;
  const int64_t step_;
  uint64_t id_ = 0;
  std::atomic<bool> answered_{false};
  std::atomic<bool> settled_{false};
};

// How many requests have a peer that waits for the answer.
size_t requests_waiting();

}  // namespace tensorwire
