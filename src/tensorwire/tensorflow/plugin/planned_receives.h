// SPDX-License-Identifier: Apache-2.0
// The receiver's end of planned transfers (planned.h), for one link: it learns from what came by
// calls what is to be planned, keeps what was pushed until it is claimed, and ends whoever waits
// for a push.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "transports.h"
#include "wire.h"

namespace tensorwire {

// Waits for a tensor that is pushed. One of the first three is called, once.
class PushWaiter {
 public:
  // On a thread of the pool, and may block there.
  virtual void pushed(const tensorflow::Tensor& tensor, bool dead) = 0;
  // It is not pushed: it has to be asked for.
  virtual void not_pushed() = 0;
  virtual void push_failed(const absl::Status& why) = 0;
  // TensorFlow's, which runs what waits for the tensor.
  virtual tensorflow::thread::ThreadPool* pool() const = 0;

 protected:
  ~PushWaiter() = default;
};

class PlannedReceives : public std::enable_shared_from_this<PlannedReceives> {
 public:
  // The link outlives the plan, until close().
  static std::shared_ptr<PlannedReceives> make(tw_link* link, Transport& by);
  // Of all links: the step is over on all workers. What was pushed of it and not claimed goes.
  static void clean_up(int64_t step);

  PlannedReceives(tw_link* link, Transport& by) : link_(link), by_(by) {}
  // Nothing is waited for any more, and nothing is begun on the link.
  void close();

  enum class Found {
    kTensor,  // here it is
    kWait,    // the waiter will hear of it
    kAsk,     // it has to be asked for
  };
  struct Pushed {
    tensorflow::Tensor tensor;
    bool dead = false;
  };
  // What is to be done for a tensor.
  Found find(int64_t step, const std::string& key, const std::shared_ptr<PushWaiter>& waiter,
             Pushed* out);
  // The same, when a call for it was answered that it was pushed. UNAVAILABLE: the stream has
  // ended.
  absl::Status find_pushed(int64_t step, const std::string& key,
                           const std::shared_ptr<PushWaiter>& waiter, Pushed* out, Found* found);
  // A waiter gives up, since its step is aborted here; it may have been called. The sender's step
  // is aborted, too, as it is when a call is cancelled.
  void give_up(int64_t step, const std::string& key, const PushWaiter* waiter);
  // A tensor came by a call.
  void learn(int64_t step, const std::string& key, const tensorflow::Tensor& tensor);

 private:
  struct Edge;
  // What a name has stood for since it was given to an edge.
  struct Planned {
    Edge* edge;
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    size_t bytes;
  };
  struct Edge {
    enum State { kSeen, kWanted, kAgreed, kNever };
    explicit Edge(std::string key) : key(std::move(key)) {}
    const std::string key;
    State state = kSeen;
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    tensorflow::TensorShape shape;
    int steps = 0;  // in which it was like that
    int64_t last_step = 0;
    int unplanned = 0;
    uint32_t name = 0;  // kWanted, kAgreed
  };
  // Of an edge in a step.
  struct Slot {
    enum State { kPushed, kAwaited, kClaimed };
    State state = kClaimed;
    std::shared_ptr<PushWaiter> waiter;
    Pushed pushed;
  };
  struct Step {
    bool pushes = false;
    bool given_up = false;  // and the sender has been told
    std::unordered_map<const Edge*, Slot> slots;
  };
  using Waiters = std::vector<std::shared_ptr<PushWaiter>>;
  struct Delivery {
    std::shared_ptr<PushWaiter> to;
    Pushed pushed;
  };
  using Deliveries = std::vector<Delivery>;

  void end(int64_t step);
  void run(tw_client_call* call);
  // Why the message is none of the plan's; empty: it is done. out: what it brought to those who
  // wait.
  std::string hear(tw_message* message, Deliveries* out);
  std::string hear_tensor(const wire::PlanRecord& record, tw_message* message, size_t* next,
                          Deliveries* out);
  // The same, for the bytes of a tensor, which are nowhere yet.
  std::string admit(const wire::PlanRecord& record, size_t bytes, const Planned** out);
  std::string hear_word(const wire::PlanRecord& record);
  static void deliver(Deliveries all);
  void fail(const absl::Status& why);
  static size_t bytes_of(const Pushed& pushed) { return pushed.tensor.TotalBytes(); }

  // With the mutex held.
  Edge* edge_of(const std::string& key);
  void unplan(Edge* edge);
  void repeats(Edge* edge);
  void withdrawn(Edge* edge);
  Pushed claim(Slot* slot);
  void drop(int64_t step, Waiters* out);
  void take_waiters(Step* step, const Edge* edge, Waiters* out);
  void say(const wire::PlanRecord& record);
  void send_words();
  bool open();

  tw_link* const link_;
  Transport& by_;

  std::mutex mutex_;   // guards what follows
  bool over_ = false;  // the peer has no plans, or none any more
  tw_client_call* call_ = nullptr;
  uint32_t last_name_ = 0;
  std::unordered_map<std::string, std::unique_ptr<Edge>> edges_;
  std::unordered_map<uint32_t, Planned> planned_;  // by name, until the sender has withdrawn it
  size_t planned_bytes_ = 0;
  std::unordered_map<int64_t, Step> steps_;
  size_t steps_with_pushes_ = 0;
  size_t held_bytes_ = 0;  // of what is pushed and not claimed
  std::unordered_set<int64_t> excluded_;
  std::string words_;  // for the sender, at the end of a step
};

}  // namespace tensorwire
