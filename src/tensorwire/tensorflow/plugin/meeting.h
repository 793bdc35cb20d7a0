// SPDX-License-Identifier: Apache-2.0
// How a member of a group of collectives takes part in a meeting (meeting_place.h): by TensorFlow's
// own connections, in a field of ours, because members that have no link to each other have to
// agree all the same. Whether a worker joins groups, GetStatus tells; the rest goes by RecvBuf,
// which may take its time to answer.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "core.h"
#include "meeting_place.h"
#include "peers.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tensorwire {

// Whether a worker joins groups. Blocks, for some seconds at most. An error: it gives no answer.
absl::Status joins_groups(const SharedWorkerCache& workers, const std::string& task, bool* joins);
MeetingPlace::Presence presence_of(const SharedWorkerCache& workers, const std::string& task);

// The requests of one member. They block, until stop(); none is made from then on.
class Attendance {
 public:
  // `place`: the task of the group's first member.
  Attendance(SharedWorkerCache workers, std::string place)
      : workers_(std::move(workers)), place_(std::move(place)) {}

  // timeout_ms 0: until there is an answer.
  absl::Status ask(const wire::MeetingRequest& request, int64_t timeout_ms, std::string* answer);
  void stop();

 private:
  const SharedWorkerCache workers_;
  const std::string place_;
  std::mutex mutex_;  // guards what follows
  bool stopped_ = false;
  tensorflow::CallOptions* under_way_ = nullptr;
};

// The worker's end. False: the request is of TensorFlow's own.
bool answer_meeting(MeetingPlace* place, const SharedWorkerCache& workers,
                    tensorflow::CallOptions* options, const tensorflow::RecvBufRequest& request,
                    tensorflow::RecvBufResponse* response,
                    const std::function<void(const absl::Status&)>& done);

}  // namespace tensorwire
