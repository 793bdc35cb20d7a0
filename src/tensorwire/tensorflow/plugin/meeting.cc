// SPDX-License-Identifier: Apache-2.0
#include "meeting.h"

#include <condition_variable>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bootstrap.h"
#include "completion.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// What a callback tells a thread that waits for it.
class Outcome {
 public:
  void tell(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    told_ = true;
    changed_.notify_all();
  }
  absl::Status wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return told_; });
    return status_;
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool told_ = false;
  absl::Status status_;
};

// A worker as long as it is asked.
class Asked {
 public:
  Asked(SharedWorkerCache workers, std::string task)
      : workers_(std::move(workers)),
        task_(std::move(task)),
        worker_(workers_->GetOrCreateWorker(task_)) {}
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked() {
    if (worker_) workers_->ReleaseWorker(task_, worker_);
  }
  tf::WorkerInterface* get() const { return worker_; }

 private:
  const SharedWorkerCache workers_;
  const std::string task_;
  tf::WorkerInterface* const worker_;
};

absl::Status unknown(const std::string& task) {
  return absl::NotFoundError(absl::StrCat("no worker is known as ", task));
}

}  // namespace

absl::Status joins_groups(const SharedWorkerCache& workers, const std::string& task, bool* joins) {
  const Asked asked(workers, task);
  if (!asked.get()) return unknown(task);
  tf::CallOptions options;
  options.SetTimeout(kGetStatusMs);
  tf::GetStatusRequest request;
  tf::GetStatusResponse response;
  add_field(&request, wire::Field::kGroup, "");
  Outcome outcome;
  asked.get()->GetStatusAsync(&options, &request, &response, /*fail_fast=*/true,
                              [&outcome](const absl::Status& status) { outcome.tell(status); });
  std::string field;
  absl::Status status = outcome.wait();
  *joins = status.ok() && find_field(response, wire::Field::kGroup, &field);
  return status;
}

MeetingPlace::Presence presence_of(const SharedWorkerCache& workers, const std::string& task) {
  bool joins = false;
  const absl::Status status = joins_groups(workers, task, &joins);
  if (absl::IsUnavailable(status)) return MeetingPlace::Presence::kGone;
  return joins ? MeetingPlace::Presence::kJoins : MeetingPlace::Presence::kDoesNot;
}

absl::Status Attendance::ask(const wire::MeetingRequest& request, int64_t timeout_ms,
                             std::string* answer) {
  const Asked asked(workers_, place_);
  if (!asked.get()) return unknown(place_);
  tf::CallOptions options;
  if (timeout_ms != 0) options.SetTimeout(timeout_ms);
  tf::RecvBufRequest message;
  tf::RecvBufResponse response;
  add_field(&message, wire::Field::kGroup, wire::encode_meeting_request(request));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return absl::CancelledError("the collectives have ended");
    under_way_ = &options;
  }
  Outcome outcome;
  asked.get()->RecvBufAsync(&options, &message, &response,
                            [&outcome](const absl::Status& status) { outcome.tell(status); });
  {
    // It could not be cancelled while it was being started.
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) options.StartCancel();
  }
  absl::Status status = outcome.wait();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_ = nullptr;
  }
  if (status.ok() && !find_field(response, wire::Field::kGroup, answer))
    status = absl::InternalError(absl::StrCat(place_, " does not know how to meet"));
  return status;
}

void Attendance::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  if (under_way_) under_way_->StartCancel();
}

bool answer_meeting(MeetingPlace* place, const SharedWorkerCache& workers, tf::CallOptions* options,
                    const tf::RecvBufRequest& request, tf::RecvBufResponse* response,
                    const std::function<void(const absl::Status&)>& done) {
  std::string bytes;
  if (!find_field(request, wire::Field::kGroup, &bytes)) return false;
  wire::MeetingRequest asked;
  if (const std::string why = wire::decode_meeting_request(bytes, &asked); !why.empty()) {
    done(absl::InvalidArgumentError(why));
    return true;
  }
  // A call that is cancelled before it has its number is dropped once it has one.
  struct Call {
    std::mutex mutex;  // guards what follows
    uint64_t id = 0;
    bool cancelled = false;
  };
  const auto call = std::make_shared<Call>();
  options->SetCancelCallback([place, call] {
    run_soon([place, call] {  // the options are locked here
      uint64_t id;
      {
        std::lock_guard<std::mutex> lock(call->mutex);
        call->cancelled = true;
        id = call->id;
      }
      if (id != 0) place->drop(id);
    });
  });
  const uint64_t id = place->take(
      asked, [workers](const std::string& task) { return presence_of(workers, task); },
      [options, response, done](int code, const std::string& text) {
        options->ClearCancelCallback();
        if (code == 0) add_field(response, wire::Field::kGroup, text);
        done(status_of(code, text));
      });
  bool cancelled;
  {
    std::lock_guard<std::mutex> lock(call->mutex);
    call->id = id;
    cancelled = call->cancelled;
  }
  if (cancelled) place->drop(id);
  return true;
}

}  // namespace tensorwire
