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

// One buffer on its way from another worker. It first finds its way, and may be cancelled
// meanwhile.
class BufferReceive final : public Completion, public std::enable_shared_from_this<BufferReceive> {
 public:
  BufferReceive(std::string task, wire::Request request, tf::Tensor* to,
                std::function<void(const tf::StatusCallback&)> by_grpc, tf::StatusCallback done)
      : task_(std::move(task)),
        request_(std::move(request)),
        to_(to),
        by_grpc_(std::move(by_grpc)),
        done_(std::move(done)) {}

  // What waits for a way to be found keeps it, and so does a call that is under way.
  void begin(const SharedWorkerCache& workers,
             std::initializer_list<tf::CancellationManager*> cancellers) {
    for (tf::CancellationManager* canceller : cancellers)
      if (canceller) registered_.emplace_back(canceller, canceller->get_cancellation_token());
    const auto self = shared_from_this();
    bool cancelled = false;
    for (const auto& [canceller, token] : registered_)
      cancelled |= !canceller->RegisterCallback(token, [this] { cancel(); });
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled |= cancelled_;
      phase_ = cancelled ? Phase::kEnded : Phase::kFinding;
    }
    if (cancelled) return end(was_cancelled());
    if (std::optional<Way> way = known_way(workers, task_))
      go(*std::move(way));
    else
      find_way(workers, task_, [self](Way found) { self->go(std::move(found)); });
  }

 private:
  enum class Phase { kNew, kFinding, kCall, kEnded };

  static absl::Status was_cancelled() {
    return absl::CancelledError("the collective was cancelled");
  }

  // False: it was cancelled while it was looking for its way, and has ended.
  bool enter(Phase phase) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kEnded) return false;
    phase_ = phase;
    return true;
  }

  void go(Way way) {
    if (way.kind == Way::kLink) return go_by_link(std::move(way.link));
    if (!enter(Phase::kEnded)) return;
    if (way.kind == Way::kNone) return end(way.why);
    deregister();
    by_grpc_(done_);
  }

  void go_by_link(std::shared_ptr<PeerLink> link) {
    if (!enter(Phase::kFinding)) return;
    link_ = std::move(link);
    const std::string bytes = wire::encode_request(request_);
    const tw_segment segment{bytes.data(), bytes.size()};
    tw_client_call* call = nullptr;
    tw_status failure{};
    const int result = core().peer_start(link_->get(), kRecvBuf.data(), kRecvBuf.size(), kNoPairs,
                                         {&segment, 1, nullptr}, 1, nullptr, &call, &failure);
    if (result != TW_OK) {
      if (enter(Phase::kEnded)) end(remote_error(result, failure.details));
      return;
    }
    self_ = shared_from_this();
    bool cancelled;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled = phase_ == Phase::kEnded;
      if (!cancelled) {
        phase_ = Phase::kCall;
        call_ = call;
      }
    }
    if (cancelled) {
      core().call_cancel(call, TW_CODE_CANCELLED, "the collective was cancelled");
      core().call_release(call);
      self_.reset();
      return;
    }
    when_ended(call, this);
  }

  // Who cancels has locks that the end needs.
  void cancel() {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (phase_ == Phase::kFinding) {
      phase_ = Phase::kEnded;
      run_soon([self = shared_from_this()] { self->end(was_cancelled()); });
    }
    if (call_) core().call_cancel(call_, TW_CODE_CANCELLED, "the collective was cancelled");
  }

  void call_ended() override {
    const std::shared_ptr<BufferReceive> self = std::move(self_);
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
    done(status);
  }

  absl::Status remote_error(int code, const char* details) const {
    return status_of(code, from_remote(details, task_,
                                       absl::StrCat("tensorwire could not receive a buffer by ",
                                                    link_->by().name)));
  }

  const std::string task_;
  const wire::Request request_;
  tf::Tensor* const to_;
  const std::function<void(const tf::StatusCallback&)> by_grpc_;
  tf::StatusCallback done_;
  std::vector<std::pair<tf::CancellationManager*, tf::CancellationToken>> registered_;
  std::shared_ptr<PeerLink> link_;
  std::shared_ptr<BufferReceive> self_;  // while a call is under way

  std::mutex mutex_;  // guards what follows
  Phase phase_ = Phase::kNew;
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

  // Which owns this.
  void belong_to(tf::CollectiveExecutor* executor) { executor_ = executor; }

  void RecvFromPeer(const std::string& peer_device, const std::string& peer_task,
                    bool peer_is_local, const std::string& key, tf::Device* to_device,
                    tf::DeviceContext* to_device_context,
                    const tf::AllocatorAttributes& to_attributes, tf::Tensor* to,
                    const tf::DeviceLocality& client_locality, int stream_index,
                    tf::CancellationManager* cancellation,
                    const tf::StatusCallback& done) override {
    const auto by_grpc = [=, this_ = this](const tf::StatusCallback& ended) {
      if (!peer_is_local) count(statistics().collective_grpc);
      this_->CollectiveRemoteAccessDistributed::RecvFromPeer(
          peer_device, peer_task, peer_is_local, key, to_device, to_device_context, to_attributes,
          to, client_locality, stream_index, cancellation, ended);
    };
    tf::DeviceAttributes attributes;
    if (peer_is_local || to_device->attributes().device_type() != "CPU" ||
        !dev_resolver_->GetDeviceAttributes(peer_device, &attributes).ok() ||
        attributes.device_type() != "CPU")
      return by_grpc(done);
    wire::Request request;
    request.step = step_id_;
    request.incarnation = attributes.incarnation();
    request.key = key;
    request.device = peer_device;
    // A collective that has run into its timeout has ended, and so may its step, while this waits.
    executor_->Ref();
    std::make_shared<BufferReceive>(peer_task, std::move(request), to, by_grpc,
                                    [executor = executor_, done](const absl::Status& status) {
                                      done(status);
                                      executor->Unref();
                                    })
        ->begin(workers_, {&abortion_cancel_mgr_, cancellation});
  }

 private:
  const SharedWorkerCache workers_;
  tf::CollectiveExecutor* executor_ = nullptr;
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

    tf::CancellationManager* const canceller = context->cancellation_manager();
    if (!canceller) return done(absl::InternalError("a collective in a step without an end"));
    if (!first_run(key, canceller)) {
      const absl::Status twice = absl::InternalError(absl::StrCat(
          "two runs of step ", step_id_, " have begun its collective ", key,
          ": the first one was given up before this worker could be told, and went on here"));
      StartAbort(twice);
      return done(twice);
    }
    const std::shared_ptr<Group> group = groups_->find(parameters->group, *rank);
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

  // Sessions give the number of a step that they have given up to the next one. Where a worker has
  // not been told, because it had not heard of the step before, the first run waits for others in
  // the same collectives as the second. Each run has a canceller of its own. False: this is not the
  // first one. Outside sessions all steps have one number and may repeat what they did.
  bool first_run(const std::string& key, const tf::CancellationManager* run) {
    if (step_id_ == 0) return true;
    const std::lock_guard<std::mutex> lock(begun_mutex_);
    if (begun_.size() == kMaxBegun) begun_.clear();
    return begun_.try_emplace(key, run).first->second == run;
  }

  Turns::Key key_of(const std::string& key) const {
    const tf::Fprint128 print = tf::Fingerprint128(absl::StrCat(step_id_, ";", key));
    return {print.low64, print.high64};
  }

  // Of loops that go round without end; two runs of a step are not that far from each other.
  static constexpr size_t kMaxBegun = 1 << 16;

  const std::shared_ptr<Groups> groups_;
  std::mutex begun_mutex_;                                       // guards what follows
  std::map<std::string, const tf::CancellationManager*> begun_;  // which run began what
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
    auto* const executor = new Executor(this, access, step, dev_mgr_, work_queue_, groups_);
    access->belong_to(executor);
    return executor;
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
