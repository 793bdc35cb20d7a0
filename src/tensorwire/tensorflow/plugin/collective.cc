// SPDX-License-Identifier: Apache-2.0
#include "collective.h"

#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "completion.h"
#include "group.h"
#include "group_operation.h"
#include "peers.h"
#include "received.h"
#include "request.h"
#include "settings.h"
#include "statistics.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/collective_rma_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/nccl/collective_communicator.h"
#include "tensorflow/core/platform/fingerprint.h"
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

// The groups of one definition of the cluster.
class Groups {
 public:
  Groups(SharedWorkerCache workers, std::string host)
      : workers_(std::move(workers)), host_(std::move(host)) {}
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups() {
    for (const auto& [identity, group] : groups_) group->close();
  }

  // Of these members, of which this worker's device has the rank.
  std::shared_ptr<Group> find(const tf::CollGroupParams& members, uint32_t rank) {
    std::string identity = absl::StrCat(members.group_key);
    for (const tf::CollGroupMember& member : members.members)
      absl::StrAppend(&identity, "\n", member.device.name(), " ", member.device.incarnation());
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Group>& group = groups_[identity];
    if (!group) {
      Group::Seat seat{workers_, host_, identity, {}, rank};
      for (const tf::CollGroupMember& member : members.members) seat.tasks.push_back(member.task);
      group = std::make_shared<Group>(std::move(seat));
    }
    return group;
  }

  void abort(const absl::Status& why) {
    std::map<std::string, std::shared_ptr<Group>> groups;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      groups = groups_;
    }
    for (const auto& [identity, group] : groups) group->abort(why);
  }

 private:
  const SharedWorkerCache workers_;
  const std::string host_;
  std::mutex mutex_;  // guards what follows
  std::map<std::string, std::shared_ptr<Group>> groups_;
};

class Executor final : public tf::BaseCollectiveExecutor {
 public:
  // groups: null leaves all to TensorFlow's own algorithms.
  Executor(tf::CollectiveExecutorMgrInterface* manager, tf::CollectiveRemoteAccess* access,
           int64_t step, const tf::DeviceMgr* devices,
           std::shared_ptr<tf::UnboundedWorkQueue> work_queue, std::shared_ptr<Groups> groups)
      : BaseCollectiveExecutor(manager, access, step, devices, std::move(work_queue)),
        groups_(std::move(groups)) {}

  void StartAbort(const absl::Status& status) override {
    BaseCollectiveExecutor::StartAbort(status);
    if (groups_) groups_->abort(reason(status));
  }

  void ExecuteAsync(tf::OpKernelContext* context, const tf::CollectiveParams* parameters,
                    const std::string& key, tf::StatusCallback done) override {
    const auto by_own = [=, this_ = this] {
      if (parameters->group.num_tasks > 1) count(statistics().collective_ungrouped);
      this_->BaseCollectiveExecutor::ExecuteAsync(context, parameters, key, done);
    };
    if (!groups_) return by_own();
    const std::optional<uint32_t> rank =
        rank_in(parameters->group, context->device()->attributes().name());
    if (!rank) return by_own();
    std::optional<GroupOperation> operation = GroupOperation::of(context, *parameters);
    if (!operation) return by_own();
    if (operation->empty()) return done(absl::OkStatus());

    const std::shared_ptr<Group> group = groups_->find(parameters->group, *rank);
    tf::CancellationManager* const canceller = context->cancellation_manager();
    if (!canceller) return done(absl::InternalError("a collective in a step without an end"));
    const tf::CancellationToken token = canceller->get_cancellation_token();
    const auto over = std::make_shared<std::atomic<bool>>(false);
    Group::Work work{key_of(key), *std::move(operation), nullptr, nullptr};
    work.done = [this, canceller, token, over, done](const absl::Status& status) {
      if (over->exchange(true)) return;
      canceller->DeregisterCallback(token);
      // Others are told, unless the step has ended here.
      if (!status.ok() && !canceller->IsCancelled()) StartAbort(status);
      done(status.ok() ? status : reason(status));
    };
    work.leave = [canceller, token, over, by_own] {
      if (over->exchange(true)) return;
      canceller->DeregisterCallback(token);
      by_own();
    };
    const auto cancel = [this] { StartAbort(absl::CancelledError("op cancelled")); };
    if (!canceller->RegisterCallback(token, cancel)) {
      done(absl::CancelledError("op cancelled"));
      return;
    }
    const float seconds = parameters->instance.impl_details.timeout_seconds;
    if (seconds > 0)
      tf::SchedNonBlockingClosureAfter(
          static_cast<int64_t>(seconds * 1'000'000), [this, canceller, token, over, done] {
            if (over->exchange(true)) return;
            canceller->DeregisterCallback(token);
            const absl::Status late =
                absl::DeadlineExceededError("Collective has timed out during execution.");
            StartAbort(late);
            done(late);
          });
    const auto begun = std::make_shared<Group::Work>(std::move(work));
    RunClosure([group, begun] { group->begin(std::move(*begun)); });
  }

 private:
  // As the base class has it: what it was aborted with, rather than what came of that.
  absl::Status reason(const absl::Status& otherwise) {
    tf::mutex_lock lock(status_mu_);
    return status_.ok() ? otherwise : status_;
  }

  Turns::Key key_of(const std::string& key) const {
    const tf::Fprint128 print = tf::Fingerprint128(absl::StrCat(step_id_, ";", key));
    return {print.low64, print.high64};
  }

  const std::shared_ptr<Groups> groups_;
};

class Manager final : public tf::RpcCollectiveExecutorMgr {
 public:
  Manager(const tf::ConfigProto& config, const tf::DeviceMgr* devices,
          std::unique_ptr<tf::DeviceResolverDistributed> devices_resolver,
          std::unique_ptr<tf::CollectiveParamResolverDistributed> parameters_resolver,
          std::unique_ptr<tf::NcclCommunicatorInterface> nccl, SharedWorkerCache workers,
          const std::string& task, const std::string& host)
      : RpcCollectiveExecutorMgr(config, devices, std::move(devices_resolver),
                                 std::move(parameters_resolver), std::move(nccl), workers.get(),
                                 task),
        workers_(std::move(workers)),
        groups_(settings().groups ? std::make_shared<Groups>(workers_, host) : nullptr) {}

 protected:
  tf::CollectiveExecutor* Create(int64_t step) override {
    auto* const access =
        new RemoteAccess(dev_mgr_, dev_resolver_.get(), work_queue_, workers_, step, task_name_);
    return new Executor(this, access, step, dev_mgr_, work_queue_, groups_);
  }

 private:
  const SharedWorkerCache workers_;
  const std::shared_ptr<Groups> groups_;  // null: the user wants none
};

}  // namespace

std::unique_ptr<tf::CollectiveExecutorMgrInterface> make_collective_manager(
    const tf::ConfigProto& config, const tf::WorkerEnv* environment,
    const SharedWorkerCache& workers, const std::string& worker_name, const std::string& host) {
  auto devices = std::make_unique<tf::DeviceResolverDistributed>(environment->device_mgr);
  auto nccl = tf::MaybeCreateNcclCommunicator(config);
  auto parameters = std::make_unique<tf::CollectiveParamResolverDistributed>(
      config, environment->device_mgr, devices.get(), nccl.get(), workers.get(), worker_name);
  return std::make_unique<Manager>(config, environment->device_mgr, std::move(devices),
                                   std::move(parameters), std::move(nccl), workers, worker_name,
                                   host);
}

}  // namespace tensorwire
