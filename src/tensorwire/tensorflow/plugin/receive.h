// SPDX-License-Identifier: Apache-2.0
// One tensor on its way from another worker. It first finds its way (a link, or gRPC), and ends
// once, with the tensor or an error; TensorFlow may abort it at any time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "completion.h"
#include "peers.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tensorwire {

class Receive final : public tensorflow::BaseRecvTensorCall,
                      public Completion,
                      public PushWaiter,
                      public std::enable_shared_from_this<Receive> {
 public:
  struct Order {
    SharedWorkerCache workers;
    std::string task;  // the sender
    std::string key;
    int64_t step = 0;
    tensorflow::thread::ThreadPool* pool = nullptr;
    tensorflow::Device* device = nullptr;  // the receiver
    tensorflow::AllocatorAttributes attributes;
    bool reachable = true;  // whether the tensor may come over a link
  };
  // Called once: the tensor, or an error.
  using Ended = std::function<void(const absl::Status&, const tensorflow::Tensor&, bool dead)>;

  Receive(Order order, Ended ended) : order_(std::move(order)), ended_(std::move(ended)) {}

  // Call it once the receive has been registered, and thus may have been aborted already.
  void begin();

  void Start(std::function<void()>) override {}  // TensorFlow does not call it
  void StartAbort(const absl::Status& status) override;
  absl::Status status() const override;

 private:
  enum class Phase { kFinding, kPush, kLink, kGrpc, kEnded };
  struct Rpc {
    tensorflow::WorkerInterface* worker = nullptr;
    tensorflow::CallOptions options;
    tensorflow::RecvTensorRequest request;
    tensorflow::TensorResponse response;
  };

  bool enter(Phase phase);
  void go(Way way);
  void go_by_link(std::shared_ptr<PeerLink> link);
  void go_by_call(std::shared_ptr<PeerLink> link);
  void find_pushed();
  void go_by_grpc();
  void call_ended() override;
  void pushed(const tensorflow::Tensor& tensor, bool dead) override;
  void not_pushed() override;
  void push_failed(const absl::Status& why) override;
  tensorflow::thread::ThreadPool* pool() const override { return order_.pool; }
  absl::Status remote_error(int code, absl::string_view details) const;
  void end(const absl::Status& status, const tensorflow::Tensor& tensor, bool dead);

  const Order order_;
  const Ended ended_;
  std::shared_ptr<Receive> self_;  // while a call is under way
  bool tried_ = false;             // a link died under it before it had sent anything
  std::shared_ptr<PeerLink> link_;
  std::unique_ptr<Rpc> rpc_;

  mutable std::mutex mutex_;  // guards what follows
  Phase phase_ = Phase::kFinding;
  absl::Status status_;
  tw_client_call* call_ = nullptr;
};

}  // namespace tensorwire
