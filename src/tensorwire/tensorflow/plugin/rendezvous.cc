// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.h"

#include "receive.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

class Rendezvous final : public tf::BaseRemoteRendezvous {
 public:
  Rendezvous(const tf::WorkerEnv* environment, int64_t step, std::shared_ptr<PlannedSends> planned)
      : BaseRemoteRendezvous(environment, step),
        planned_(std::move(planned)),
        number_(planned_ ? planned_->begin(step) : 0) {}

  absl::Status Send(const tf::Rendezvous::ParsedKey& key, const tf::Rendezvous::Args& args,
                    const tf::Tensor& tensor, bool dead) override {
    if (planned_ && planned_->take(step_id_, key.FullKey(), tensor, dead)) return absl::OkStatus();
    return BaseRemoteRendezvous::Send(key, args, tensor, dead);
  }

  void StartAbort(const absl::Status& status) override {
    if (planned_) planned_->abort(step_id_, number_);
    BaseRemoteRendezvous::StartAbort(status);
  }

 protected:
  void RecvFromRemoteAsync(const tf::Rendezvous::ParsedKey& key, const tf::Rendezvous::Args& args,
                           DoneCallback done) override {
    const auto fail = [&](const absl::Status& status) {
      done(status, Args(), args, tf::Tensor(), false);
    };
    Receive::Order order;
    std::string device;
    if (!tf::DeviceNameUtils::SplitDeviceName(key.src_device, &order.task, &device))
      return fail(
          absl::InternalError(std::string(key.src_device) + " is an invalid remote device"));
    tf::WorkerSession* const worker_session = session();
    if (absl::Status found =
            worker_session->device_mgr()->LookupDevice(key.dst_device, &order.device);
        !found.ok())
      return fail(found);
    order.workers = worker_session->GetSharedWorkerCache();
    order.key = std::string(key.FullKey());
    order.step = step_id_;
    order.pool = env_->compute_pool;
    order.attributes = args.alloc_attrs;
    // Memory of other devices is not mapped by processes, and what is pinned for one is its own.
    order.reachable = key.src.type == "CPU" && !args.alloc_attrs.gpu_compatible() &&
                      (key.dst.type == "CPU" || args.alloc_attrs.on_host());
    // Callers' arguments live until `done`, the receive as long as anybody knows of it.
    struct Context {
      std::shared_ptr<Receive> receive;
    };
    auto context = std::make_shared<Context>();
    Ref();
    context->receive = std::make_shared<Receive>(
        std::move(order), [this, context, args, done](const absl::Status& status,
                                                      const tf::Tensor& tensor, bool dead) {
          const std::shared_ptr<Receive> receive = std::move(context->receive);
          // From here on nobody aborts it any more.
          DeregisterCall(receive.get(), args);
          const absl::Status aborted = receive->status();
          done(aborted.ok() ? status : aborted, Args(), args, tensor, dead);
          Unref();
        });
    const std::shared_ptr<Receive> receive = context->receive;
    RegisterCall(receive.get(), args);
    receive->begin();
  }

 private:
  ~Rendezvous() override {
    if (planned_) planned_->end(step_id_, number_);
  }

  const std::shared_ptr<PlannedSends> planned_;
  const uint64_t number_;  // of the step in planned_
};

}  // namespace

tsl::core::RefCountPtr<tf::BaseRemoteRendezvous> RendezvousManager::Create(
    int64_t step, const tf::WorkerEnv* environment) {
  return tsl::core::RefCountPtr<tf::BaseRemoteRendezvous>(
      new Rendezvous(environment, step, planned_));
}

// A step is over on all workers before it is cleaned up on any.
void RendezvousManager::Cleanup(int64_t step) {
  if (planned_) planned_->clean_up(step);
  BaseRendezvousMgr::Cleanup(step);
  if (planned_) PlannedReceives::clean_up(step);
}

void RendezvousManager::CleanupAll() {
  if (planned_) planned_->clean_up_all();
  BaseRendezvousMgr::CleanupAll();
}

}  // namespace tensorwire
