// SPDX-License-Identifier: Apache-2.0
// The sender's end of planned transfers (planned.h): what peers want ahead, and what becomes of the
// tensors of each step.
//
// A peer that has said what it wants waits for it without a call. So each tensor of an edge that
// was agreed on is either pushed, or the peer is told to ask: of a step (kExcluded), or of an edge
// (kWithdrawn). Steps that were there before the agreement are excluded, because their tensors may
// have been sent already. A peer in doubt asks, and is told what was pushed.
//
// A thread sends what gathers while it is busy or asleep, and listens to peers; whoever fills a
// message sends it there and then. Nobody waits for a peer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core.h"
#include "sent_tensor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "wire.h"
#include "worker_service.h"

namespace tensorwire {

class PlannedSends {
 public:
  PlannedSends();
  ~PlannedSends();

  // Takes a call of kPlan over.
  void open(tw_server_call* call, WorkerService* worker);

  // A rendezvous of the step begins and ends; the number is that of the step here. TensorFlow may
  // make several of one step, one after the other.
  uint64_t begin(int64_t step);
  void end(int64_t step, uint64_t number);
  // False: the rendezvous has to take the tensor.
  bool take(int64_t step, absl::string_view key, const tensorflow::Tensor& tensor, bool dead);
  // Nothing of the step is taken any more, and peers are not to wait for it.
  void abort(int64_t step, uint64_t number);
  // The step is over on all workers.
  void clean_up(int64_t step);
  void clean_up_all();

  enum class Answer {
    kTensor,  // as soon as it is there; nobody pushes it any more
    kPushed,  // it was, or is about to be
    kLost,    // it was, but that stream has ended, or it is of another link
  };
  // What a call for a tensor is answered with. A rendezvous of the step is there meanwhile.
  Answer asked(tw_server_call* call, int64_t step, const std::string& key);

 private:
  struct Subscriber;
  struct Edge;
  // What a subscriber gets of a step.
  struct Share {
    std::shared_ptr<Subscriber> with;
    bool excluded;  // nothing, from now on
    bool pushed;    // something: it is among the subscriber's steps until it has ended
  };
  // What became of an edge in a step.
  struct Sent {
    std::shared_ptr<const Edge> edge;
    bool pushed = false;
    bool referred = false;  // a call was answered with a reference to what was pushed
    uint32_t asked = 0;     // calls that wait for it
  };
  struct Step {
    uint64_t number = 0;
    int rendezvous = 0;
    bool aborted = false;
    std::vector<Share> shares;
    std::unordered_map<std::string_view, Sent> sent;  // by key
  };
  enum class Taken { kNo, kYes, kFull, kNeedsSegment };

  // With the mutex held.
  Taken take(int64_t step, absl::string_view key, const tensorflow::Tensor& tensor, bool dead,
             std::unique_ptr<SentTensor> segment, std::shared_ptr<Subscriber>* to);
  Share* share(int64_t id, Step* step, const std::shared_ptr<Subscriber>& with);
  void exclude(int64_t id, Step* step, const std::shared_ptr<Subscriber>& with);
  void finish(int64_t id, Step* step);
  void withdraw(std::shared_ptr<Edge> edge);
  void wake(Subscriber* subscriber);

  void run();
  void flush(const std::shared_ptr<Subscriber>& subscriber, bool all);
  void listen(const std::shared_ptr<Subscriber>& subscriber);
  // Why the message is none of the plan's; empty: it is done.
  std::string hear(const std::shared_ptr<Subscriber>& subscriber, tw_message* message);
  std::string want(const std::shared_ptr<Subscriber>& subscriber, const wire::PlanRecord& record);
  void close(const std::shared_ptr<Subscriber>& subscriber, const absl::Status& why);

  tw_events* const events_;
  std::atomic<size_t> edges_known_{0};

  std::mutex mutex_;  // guards what follows
  std::thread thread_;
  uint64_t last_ = 0;  // numbers subscribers, and edges and steps in the order of their beginning
  std::unordered_map<uint64_t, std::shared_ptr<Subscriber>> subscribers_;
  std::unordered_map<std::string_view, std::shared_ptr<Edge>> edges_;  // by key
  std::unordered_map<int64_t, Step> steps_;
};

}  // namespace tensorwire
