// SPDX-License-Identifier: Apache-2.0
#include "collective.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "completion.h"
#include "peers.h"
#include "received.h"
#include "request.h"
#include "statistics.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/collective_rma_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/nccl/collective_communicator.h"
#include "tensorflow/core/platform/status.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// One buffer on its way from another worker. Deletes itself when it has ended.
class BufferReceive final : public Completion {
 public:
  BufferReceive(std::string task, std::shared_ptr<PeerLink> link, tf::Tensor* to,
                std::vector<tf::CancellationManager*> cancellers, tf::StatusCallback done)
      : task_(std::move(task)), link_(std::move(link)), to_(to), done_(std::move(done)) {
    for (tf::CancellationManager* canceller : cancellers)
      if (canceller) registered_.emplace_back(canceller, canceller->get_cancellation_token());
  }

  void start(const wire::Request& request) {
    for (const auto& [canceller, token] : registered_) {
      if (!canceller->RegisterCallback(token, [this] { cancel(); })) cancel();
    }
    const std::string bytes = wire::encode_request(request);
    const tw_segment segment{bytes.data(), bytes.size()};
    tw_client_call* call = nullptr;
    tw_status failure{};
    int result = TW_CODE_CANCELLED;
    bool cancelled;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled = cancelled_;
    }
    if (!cancelled)
      result = core().peer_start(link_->get(), kRecvBuf.data(), kRecvBuf.size(), kNoPairs,
                                 {&segment, 1, nullptr}, 1, nullptr, &call, &failure);
    if (result != TW_OK)
      return end(cancelled ? absl::CancelledError("the collective was cancelled")
                           : remote_error(result, failure.details));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      call_ = call;
      cancelled = cancelled_;
    }
    if (cancelled) cancel();
    when_ended(call, this);
  }

 private:
  void cancel() {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (call_) core().call_cancel(call_, TW_CODE_CANCELLED, "the collective was cancelled");
  }

  void call_ended() override {
    // Waits for callbacks that are under way, so they must be gone before the call is.
    deregister();
    int32_t code = 0;
    tw_metadata* trailing = nullptr;
    tw_status outcome{};
    core().call_outcome(call_, nullptr, &code, &trailing, &outcome);
    absl::Status status;
    if (code != 0) {
      status = remote_error(code, outcome.details);
      add_payloads(trailing, &status);
    } else {
      tw_message* message = nullptr;
      status = absl::InternalError("the answer has no message, or no memory was left for it");
      if (core().call_take(call_, &message)) {
        status = receive_buffer(message, to_);
        core().message_release(message);
      }
    }
    if (trailing) core().metadata_release(trailing);
    core().call_release(call_);
    end(status);
  }

  void deregister() {
    for (const auto& [canceller, token] : std::exchange(registered_, {}))
      canceller->DeregisterCallback(token);
  }

  void end(const absl::Status& status) {
    deregister();
    const tf::StatusCallback done = std::move(done_);
    delete this;
    done(status);
  }

  absl::Status remote_error(int code, const char* details) const {
    return status_of(code, from_remote(details, task_,
                                       absl::StrCat("tensorwire could not receive a buffer by ",
                                                    link_->by().name)));
  }

  const std::string task_;
  const std::shared_ptr<PeerLink> link_;
  tf::Tensor* const to_;
  tf::StatusCallback done_;
  std::vector<std::pair<tf::CancellationManager*, tf::CancellationToken>> registered_;
  std::mutex mutex_;  // guards what follows
  bool cancelled_ = false;
  tw_client_call* call_ = nullptr;
};

class RemoteAccess final : public tf::CollectiveRemoteAccessDistributed {
 public:
  RemoteAccess(const tf::DeviceMgr* devices, tf::DeviceResolverInterface* resolver,
               std::shared_ptr<tf::UnboundedWorkQueue> work_queue, SharedWorkerCache workers,
               int64_t step, const std::string& task)
      : CollectiveRemoteAccessDistributed(devices, resolver, std::move(work_queue), workers.get(),
                                          step, task),
        workers_(std::move(workers)) {}

  void RecvFromPeer(const std::string& peer_device, const std::string& peer_task,
                    bool peer_is_local, const std::string& key, tf::Device* to_device,
                    tf::DeviceContext* to_device_context,
                    const tf::AllocatorAttributes& to_attributes, tf::Tensor* to,
                    const tf::DeviceLocality& client_locality, int stream_index,
                    tf::CancellationManager* cancellation,
                    const tf::StatusCallback& done) override {
    const auto by_grpc = [=, this_ = this] {
      if (!peer_is_local) count(statistics().collective_grpc);
      this_->CollectiveRemoteAccessDistributed::RecvFromPeer(
          peer_device, peer_task, peer_is_local, key, to_device, to_device_context, to_attributes,
          to, client_locality, stream_index, cancellation, done);
    };
    tf::DeviceAttributes attributes;
    if (peer_is_local || to_device->attributes().device_type() != "CPU" ||
        !dev_resolver_->GetDeviceAttributes(peer_device, &attributes).ok() ||
        attributes.device_type() != "CPU")
      return by_grpc();
    wire::Request request;
    request.step = step_id_;
    request.incarnation = attributes.incarnation();
    request.key = key;
    request.device = peer_device;
    const auto go = [=, this_ = this](Way way) {
      if (way.kind == Way::kNone) return done(way.why);
      if (way.kind != Way::kLink) return by_grpc();
      (new BufferReceive(peer_task, std::move(way.link), to,
                         {&this_->abortion_cancel_mgr_, cancellation}, done))
          ->start(request);
    };
    if (std::optional<Way> way = known_way(workers_, peer_task))
      go(*std::move(way));
    else
      find_way(workers_, peer_task, go);
  }

 private:
  const SharedWorkerCache workers_;
};

class Manager final : public tf::RpcCollectiveExecutorMgr {
 public:
  Manager(const tf::ConfigProto& config, const tf::DeviceMgr* devices,
          std::unique_ptr<tf::DeviceResolverDistributed> devices_resolver,
          std::unique_ptr<tf::CollectiveParamResolverDistributed> parameters_resolver,
          std::unique_ptr<tf::NcclCommunicatorInterface> nccl, SharedWorkerCache workers,
          const std::string& task)
      : RpcCollectiveExecutorMgr(config, devices, std::move(devices_resolver),
                                 std::move(parameters_resolver), std::move(nccl), workers.get(),
                                 task),
        workers_(std::move(workers)) {}

 protected:
  tf::CollectiveExecutor* Create(int64_t step) override {
    auto* const access =
        new RemoteAccess(dev_mgr_, dev_resolver_.get(), work_queue_, workers_, step, task_name_);
    return new tf::BaseCollectiveExecutor(this, access, step, dev_mgr_, work_queue_);
  }

 private:
  const SharedWorkerCache workers_;
};

}  // namespace

std::unique_ptr<tf::CollectiveExecutorMgrInterface> make_collective_manager(
    const tf::ConfigProto& config, const tf::WorkerEnv* environment,
    const SharedWorkerCache& workers, const std::string& worker_name) {
  auto devices = std::make_unique<tf::DeviceResolverDistributed>(environment->device_mgr);
  auto nccl = tf::MaybeCreateNcclCommunicator(config);
  auto parameters = std::make_unique<tf::CollectiveParamResolverDistributed>(
      config, environment->device_mgr, devices.get(), nccl.get(), workers.get(), worker_name);
  return std::make_unique<Manager>(config, environment->device_mgr, std::move(devices),
                                   std::move(parameters), std::move(nccl), workers, worker_name);
}

}  // namespace tensorwire
