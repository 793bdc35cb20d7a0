// SPDX-License-Identifier: Apache-2.0
#include "receive.h"

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "received.h"
#include "request.h"
#include "statistics.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/platform/status.h"

namespace tensorwire {

namespace tf = ::tensorflow;

void Receive::begin() {
  if (!status().ok()) {
    if (enter(Phase::kEnded)) end(absl::OkStatus(), {}, false);
    return;
  }
  if (!order_.reachable) {
    count(statistics().grpc_because_device);
    return go_by_grpc();
  }
  if (std::optional<Way> way = known_way(order_.workers, order_.task)) return go(*std::move(way));
  find_way(order_.workers, order_.task,
           [self = shared_from_this()](Way found) { self->go(std::move(found)); });
}

// False: it was aborted while it was looking for its way, and has ended.
bool Receive::enter(Phase phase) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (phase_ == Phase::kEnded) return false;
  phase_ = phase;
  return true;
}

void Receive::go(Way way) {
  switch (way.kind) {
    case Way::kLink:
      return go_by_link(std::move(way.link));
    case Way::kNone:
      if (enter(Phase::kEnded)) end(way.why, {}, false);
      return;
    case Way::kGrpc:
      count(way.reason == Way::kNoPlugin ? statistics().grpc_because_peer
                                         : statistics().grpc_because_link);
      return go_by_grpc();
  }
}

void Receive::go_by_link(std::shared_ptr<PeerLink> link) {
  PlannedReceives* const planned = link->planned();
  if (!planned) return go_by_call(std::move(link));
  link_ = std::move(link);
  if (!enter(Phase::kPush)) return;
  PlannedReceives::Pushed here;
  switch (planned->find(order_.step, order_.key, shared_from_this(), &here)) {
    case PlannedReceives::Found::kTensor:
      return pushed(here.tensor, here.dead);
    case PlannedReceives::Found::kWait:
      return;
    case PlannedReceives::Found::kAsk:
      return not_pushed();
  }
}

void Receive::pushed(const tf::Tensor& tensor, bool dead) {
  if (enter(Phase::kEnded)) end(absl::OkStatus(), tensor, dead);
}

void Receive::not_pushed() {
  if (enter(Phase::kFinding)) go_by_call(link_);
}

void Receive::push_failed(const absl::Status& why) {
  if (enter(Phase::kEnded))
    end(remote_error(static_cast<int>(why.code()), why.message()), {}, false);
}

// The answer to the call was that it was pushed.
void Receive::find_pushed() {
  PlannedReceives* const planned = link_->planned();
  PlannedReceives::Pushed here;
  PlannedReceives::Found found;
  if (!planned) return push_failed(absl::InternalError("the answer is on a stream of no plan"));
  if (const absl::Status status =
          planned->find_pushed(order_.step, order_.key, shared_from_this(), &here, &found);
      !status.ok())
    return push_failed(status);
  switch (found) {
    case PlannedReceives::Found::kTensor:
      return pushed(here.tensor, here.dead);
    case PlannedReceives::Found::kWait:
      return;
    case PlannedReceives::Found::kAsk:
      return not_pushed();
  }
}

void Receive::go_by_call(std::shared_ptr<PeerLink> link) {
  wire::Request request;
  request.step = order_.step;
  request.key = order_.key;
  const std::string bytes = wire::encode_request(request);
  const tw_segment segment{bytes.data(), bytes.size()};
  tw_client_call* call = nullptr;
  tw_status failure{};
  const int result =
      core().peer_start(link->get(), kRecvTensor.data(), kRecvTensor.size(), kNoPairs,
                        {&segment, 1, nullptr}, 1, nullptr, &call, &failure);
  if (result != TW_OK) {
    // Nothing was sent, so that the peer may be asked again who it is now.
    if (!link->alive() && !std::exchange(tried_, true)) {
      find_way(order_.workers, order_.task,
               [self = shared_from_this()](Way found) { self->go(std::move(found)); });
      return;
    }
    if (enter(Phase::kEnded)) end(remote_error(result, failure.details), {}, false);
    return;
  }
  link_ = std::move(link);
  self_ = shared_from_this();
  bool aborted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted = phase_ == Phase::kEnded;
    if (!aborted) {
      phase_ = Phase::kLink;
      call_ = call;
    }
  }
  if (aborted) {
    core().call_cancel(call, TW_CODE_CANCELLED, "aborted");
    core().call_release(call);
    self_.reset();
    return;
  }
  when_ended(call, this);
}

void Receive::call_ended() {
  const std::shared_ptr<Receive> self = std::move(self_);
  tw_client_call* call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    call = std::exchange(call_, nullptr);
    phase_ = Phase::kEnded;
  }
  int32_t code = 0;
  tw_metadata* trailing = nullptr;
  tw_status outcome{};
  core().call_outcome(call, nullptr, &code, &trailing, &outcome);
  absl::Status status;
  Received received;
  if (code != 0) {
    status = remote_error(code, outcome.details);
    add_payloads(trailing, &status);
  } else {
    tw_message* message = nullptr;
    if (core().call_take(call, &message)) {
      status = receive_tensor(message, link_->by(), order_.device->GetAllocator(order_.attributes),
                              &received);
      core().message_release(message);
    } else {
      status = absl::InternalError("the answer has no message, or no memory was left for it");
    }
    if (!status.ok()) status = remote_error(static_cast<int>(status.code()), status.message());
  }
  if (trailing) core().metadata_release(trailing);
  core().call_release(call);
  if (status.ok() && received.form == wire::Form::kPushed) {
    bool aborted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      aborted = !status_.ok();
      if (!aborted) phase_ = Phase::kPush;
    }
    if (!aborted) return find_pushed();
  } else if (status.ok() && received.form == wire::Form::kRaw && !received.dead &&
             link_->planned()) {
    link_->planned()->learn(order_.step, order_.key, received.tensor);
  }
  end(status, received.tensor, received.dead);
}

absl::Status Receive::remote_error(int code, absl::string_view details) const {
  absl::Status status = status_of(
      code, from_remote(details, order_.task,
                        absl::StrCat("tensorwire could not receive ", order_.key,
                                     link_ ? absl::StrCat(" by ", link_->by().name) : "")));
  if (status.code() == absl::StatusCode::kCancelled) return tf::StatusGroup::MakeDerived(status);
  return status;
}

// TensorFlow's own receive, with the guards that it puts around an abort.
void Receive::go_by_grpc() {
  rpc_ = std::make_unique<Rpc>();
  rpc_->worker = order_.workers->GetOrCreateWorker(order_.task);
  if (!rpc_->worker) {
    if (enter(Phase::kEnded))
      end(absl::InternalError(absl::StrCat("No worker known as ", order_.task)), {}, false);
    return;
  }
  if (!enter(Phase::kGrpc)) return order_.workers->ReleaseWorker(order_.task, rpc_->worker);
  self_ = shared_from_this();
  rpc_->request.set_step_id(order_.step);
  rpc_->request.set_rendezvous_key(order_.key);
  rpc_->request.set_request_id(tf::GetUniqueRequestId());
  rpc_->response.InitAlloc(order_.device, order_.attributes);
  // The callback may come before the look at the status below, and must not end this meanwhile.
  auto looked = std::make_shared<absl::Notification>();
  rpc_->worker->RecvTensorAsync(
      &rpc_->options, &rpc_->request, &rpc_->response, [this, looked](const absl::Status& status) {
        looked->WaitForNotification();
        const std::shared_ptr<Receive> self = std::move(self_);
        {
          std::lock_guard<std::mutex> lock(mutex_);
          phase_ = Phase::kEnded;
        }
        order_.workers->ReleaseWorker(order_.task, rpc_->worker);
        if (status.ok()) {
          count(statistics().received_grpc);
          count(statistics().received_grpc_bytes, rpc_->response.tensor().TotalBytes());
        }
        end(status, rpc_->response.tensor(), rpc_->response.metadata().is_dead());
      });
  // An abort before the request was on its way had nothing to cancel.
  if (!status().ok()) rpc_->options.StartCancel();
  looked->Notify();
}

void Receive::StartAbort(const absl::Status& status) {
  std::shared_ptr<Receive> self;
  Phase was;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    was = phase_;
    status_.Update(status);
    if (was == Phase::kFinding || was == Phase::kPush) phase_ = Phase::kEnded;
    // Under the lock, which keeps the call until it is let go of.
    if (was == Phase::kLink && call_) core().call_cancel(call_, TW_CODE_CANCELLED, "aborted");
  }
  if (was == Phase::kGrpc) rpc_->options.StartCancel();
  if (was == Phase::kPush) link_->planned()->give_up(order_.step, order_.key, this);
  // Whoever aborts holds locks that the end needs.
  if (was == Phase::kFinding || was == Phase::kPush)
    run_soon([self = shared_from_this()] { self->end(absl::OkStatus(), {}, false); });
}

absl::Status Receive::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void Receive::end(const absl::Status& status, const tf::Tensor& tensor, bool dead) {
  ended_(status, tensor, dead);
}

}  // namespace tensorwire
