// SPDX-License-Identifier: Apache-2.0
#include "planned_sends.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "plan_message.h"
#include "planned.h"
#include "request.h"
#include "statistics.h"
#include "tensorflow/core/platform/logging.h"
#include "thread.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// Steps that are there when something is wanted are excluded one by one; with more of them than
// this, nothing is planned.
constexpr size_t kMostToExclude = 64;
// Answers that wait for a subscriber to listen; one that keeps to the plan has fewer names.
constexpr size_t kMostAnswers = 2 * kMostEdges;

// What a subscriber is looked after for, in the lowest bits of a token.
enum Task : uint64_t { kFlush = 0, kRoom = 1, kMessage = 2 };
constexpr int kTaskBits = 2;
constexpr uint64_t kTaskMask = (1 << kTaskBits) - 1;

constexpr tw_wait kNow{0, nullptr, nullptr};

std::string_view view_of(absl::string_view key) { return {key.data(), key.size()}; }

}  // namespace

struct PlannedSends::Subscriber {
  Subscriber(uint64_t id, tw_server_call* call, WorkerService* worker)
      : id(id),
        call(call),
        process(core().call_process(call)),
        worker(worker),
        lending(lends(call)),
        messages(lending) {}
  ~Subscriber() {
    core().peer_release(process);
    core().call_release(call);
  }

  const uint64_t id;
  tw_server_call* const call;
  tw_peer* const process;  // one link of it
  WorkerService* const worker;
  const bool lending;
  // What follows is guarded by the mutex of PlannedSends.
  bool over = false;
  std::unordered_map<uint32_t, std::shared_ptr<Edge>> edges;  // by name
  size_t planned_bytes = 0;
  size_t steps = 0;    // in which something is pushed
  size_t answers = 0;  // since nothing was left to send
  PlanMessages messages;
  bool sending = false, sends_all = false;  // a thread does; and not only what is full
  bool woken = false, waits_for_room = false;
};

struct PlannedSends::Edge {
  std::string key;
  uint32_t name;
  std::shared_ptr<Subscriber> of;
  tf::DataType dtype;
  tf::TensorShape shape;
  size_t bytes;
  uint64_t number;
};

PlannedSends::PlannedSends() : events_(core().events_create()) {
  if (!events_) throw std::bad_alloc();
}

PlannedSends::~PlannedSends() {
  core().events_close(events_);
  if (thread_.joinable()) thread_.join();
  core().events_release(events_);
}

void PlannedSends::open(tw_server_call* call, WorkerService* worker) {
  std::shared_ptr<Subscriber> subscriber;
  bool another = false, heard;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = start_thread("tensorwire-plan", [this] { run(); });
    heard = thread_.joinable();
    subscriber = std::make_shared<Subscriber>(++last_, call, worker);
    for (const auto& each : subscribers_) another |= each.second->process == subscriber->process;
    subscribers_.emplace(subscriber->id, subscriber);
  }
  // What a peer may have planned is counted for each stream.
  if (another) {
    count(statistics().plans_refused);
    return close(subscriber, absl::ResourceExhaustedError("a link has one stream of the plan"));
  }
  if (!heard ||
      !core().call_notify(call, TW_ON_MESSAGE, events_, subscriber->id << kTaskBits | kMessage))
    close(subscriber, absl::ResourceExhaustedError("the worker has no memory left for a plan"));
}

// ---- steps ----

uint64_t PlannedSends::begin(int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  Step& of = steps_[step];
  if (of.number == 0) of.number = ++last_;
  ++of.rendezvous;
  return of.number;
}

// What was pushed of a step is known until it is cleaned up.
void PlannedSends::end(int64_t step, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = steps_.find(step);
  if (at == steps_.end() || at->second.number != number || --at->second.rendezvous > 0) return;
  for (const Share& each : at->second.shares)
    if (!each.excluded && !each.with->over) return;
  for (const auto& sent : at->second.sent)
    if (sent.second.pushed && !sent.second.edge->of->over) return;
  finish(step, &at->second);
  steps_.erase(at);
}

void PlannedSends::clean_up(int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = steps_.find(step);
  if (at == steps_.end()) return;
  finish(step, &at->second);
  steps_.erase(at);
}

void PlannedSends::clean_up_all() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& step : steps_) finish(step.first, &step.second);
  steps_.clear();
}

// Peers are told with what they get next: nobody waits for this.
void PlannedSends::finish(int64_t id, Step* step) {
  for (const Share& each : step->shares) {
    if (each.with->over) continue;
    if (!each.excluded || each.pushed) --each.with->steps;
    each.with->messages.add({wire::PlanKind::kEnded, 0, id, {}});
    if (each.with->messages.full()) wake(each.with.get());
  }
}

void PlannedSends::abort(int64_t step, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = steps_.find(step);
  if (at == steps_.end() || at->second.number != number || at->second.aborted) return;
  at->second.aborted = true;
  for (const auto& each : subscribers_)
    if (!each.second->edges.empty()) exclude(step, &at->second, each.second);
}

// The subscriber's share of a step; makes it, where the subscriber gets its first tensor.
PlannedSends::Share* PlannedSends::share(int64_t id, Step* step,
                                         const std::shared_ptr<Subscriber>& with) {
  for (Share& each : step->shares)
    if (each.with == with) return &each;
  step->shares.push_back({with, false, false});
  ++with->steps;
  if (with->steps > kMostSteps) exclude(id, step, with);
  return &step->shares.back();
}

void PlannedSends::exclude(int64_t id, Step* step, const std::shared_ptr<Subscriber>& with) {
  Share* of = nullptr;
  for (Share& each : step->shares)
    if (each.with == with) of = &each;
  if (of && of->excluded) return;
  if (of) {
    of->excluded = true;
    if (!of->pushed) --with->steps;
  } else {
    step->shares.push_back({with, true, false});
  }
  with->messages.add({wire::PlanKind::kExcluded, 0, id, {}});
  wake(with.get());
}

// ---- tensors ----

bool PlannedSends::take(int64_t step, absl::string_view key, const tf::Tensor& tensor, bool dead) {
  if (edges_known_.load(std::memory_order_relaxed) == 0) return false;
  std::shared_ptr<Subscriber> to;
  Taken taken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken = take(step, key, tensor, dead, nullptr, &to);
  }
  if (taken == Taken::kNeedsSegment) {
    // It may be copied, which takes time.
    auto segment = std::make_unique<SentTensor>();
    if (!segment->take(tensor, to->lending)) segment = nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    if (segment) {
      taken = take(step, key, tensor, dead, std::move(segment), &to);
    } else {
      if (const auto at = edges_.find(view_of(key)); at != edges_.end()) withdraw(at->second);
      return false;
    }
  }
  if (taken == Taken::kNo) return false;
  if (taken == Taken::kFull) flush(to, /*all=*/false);
  return true;
}

PlannedSends::Taken PlannedSends::take(int64_t step, absl::string_view key,
                                       const tf::Tensor& tensor, bool dead,
                                       std::unique_ptr<SentTensor> segment,
                                       std::shared_ptr<Subscriber>* to) {
  const auto at = edges_.find(view_of(key));
  const auto in = steps_.find(step);
  if (at == edges_.end() || in == steps_.end()) return Taken::kNo;
  const std::shared_ptr<Edge> edge = at->second;
  if (in->second.aborted || in->second.number < edge->number) return Taken::kNo;
  *to = edge->of;
  Share* const mine = share(step, &in->second, edge->of);
  if (mine->excluded) return Taken::kNo;
  Sent& sent = in->second.sent.try_emplace(edge->key, Sent{edge}).first->second;
  if (sent.asked > 0) {
    --sent.asked;
    return Taken::kNo;
  }
  if (sent.pushed) return Taken::kNo;  // whoever wants another one asks for it
  const bool raw = !dead;
  if (raw && (tensor.dtype() != edge->dtype || tensor.shape() != edge->shape)) {
    withdraw(edge);
    return Taken::kNo;
  }
  wire::PlanRecord record{wire::PlanKind::kDead, edge->name, step, {}};
  if (raw && edge->bytes < kSmall) {
    const auto bytes = tensor.tensor_data();
    record.kind = wire::PlanKind::kTensor;
    record.payload = {bytes.data(), bytes.size()};
    edge->of->messages.add(record);
    count_sent_small(tensor);
  } else if (raw) {
    if (!segment) return Taken::kNeedsSegment;
    record.kind = wire::PlanKind::kSegment;
    edge->of->messages.add(record, std::move(segment));
  } else {
    edge->of->messages.add(record);
  }
  sent.pushed = mine->pushed = true;
  count(statistics().served_planned);
  if (edge->of->messages.full()) return Taken::kFull;
  wake(edge->of.get());
  return Taken::kYes;
}

PlannedSends::Answer PlannedSends::asked(tw_server_call* call, int64_t step,
                                         const std::string& key) {
  const std::unique_ptr<tw_peer, void (*)(tw_peer*)> process(core().call_process(call),
                                                             core().peer_release);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto in = steps_.find(step);
  if (in == steps_.end()) return Answer::kTensor;
  if (const auto sent = in->second.sent.find(key); sent != in->second.sent.end()) {
    if (sent->second.pushed && !sent->second.referred) {
      sent->second.referred = true;
      const std::shared_ptr<Subscriber>& to = sent->second.edge->of;
      if (!to->over && to->process == process.get()) return Answer::kPushed;
      // Whoever asks on another link would go without in each step.
      if (const auto at = edges_.find(key); at != edges_.end() && at->second->of == to)
        withdraw(at->second);
      return Answer::kLost;
    }
    ++sent->second.asked;
    return Answer::kTensor;
  }
  const auto at = edges_.find(key);
  if (at != edges_.end() && in->second.number > at->second->number)
    in->second.sent.try_emplace(at->second->key, Sent{at->second}).first->second.asked = 1;
  return Answer::kTensor;
}

// ---- what subscribers say ----

void PlannedSends::run() {
  for (;;) {
    uint64_t token = 0;
    int closed = 0;
    if (core().events_wait(events_, nullptr, &token, 1, &closed) == 0) {
      if (closed) return;
      continue;
    }
    std::shared_ptr<Subscriber> subscriber;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto at = subscribers_.find(token >> kTaskBits);
      if (at == subscribers_.end()) continue;
      subscriber = at->second;
      if ((token & kTaskMask) == kFlush) subscriber->woken = false;
      if ((token & kTaskMask) == kRoom) subscriber->waits_for_room = false;
    }
    if ((token & kTaskMask) == kMessage)
      listen(subscriber);
    else
      flush(subscriber, /*all=*/true);
  }
}

void PlannedSends::listen(const std::shared_ptr<Subscriber>& subscriber) {
  for (;;) {
    tw_message* message = nullptr;
    tw_status status{};
    const int result = core().call_receive(subscriber->call, &kNow, &message, &status);
    if (result == TW_CODE_DEADLINE_EXCEEDED) break;
    if (result != TW_OK) return close(subscriber, status_of(status));
    if (!message) return close(subscriber, absl::OkStatus());
    const std::string wrong = hear(subscriber, message);
    core().message_release(message);
    if (wrong.empty()) continue;
    count(statistics().plans_refused);
    return close(subscriber, absl::InvalidArgumentError(wrong));
  }
  if (!core().call_notify(subscriber->call, TW_ON_MESSAGE, events_,
                          subscriber->id << kTaskBits | kMessage))
    close(subscriber, absl::ResourceExhaustedError("the worker has no memory left for a plan"));
}

std::string PlannedSends::hear(const std::shared_ptr<Subscriber>& subscriber, tw_message* message) {
  if (core().message_count(message) != 1) return "a message of the plan with the wrong segments";
  const tw_segment segment = core().message_segment(message, 0);
  if (segment.size > wire::kMaxRequest) return "a message of the plan that is too long";
  const std::string copy(static_cast<const char*>(segment.data), segment.size);
  std::string_view bytes = copy;
  while (!bytes.empty()) {
    wire::PlanRecord record;
    if (std::string wrong = wire::decode_plan_record(&bytes, &record); !wrong.empty()) return wrong;
    switch (record.kind) {
      case wire::PlanKind::kWant:
        if (std::string wrong = want(subscriber, record); !wrong.empty()) return wrong;
        break;
      case wire::PlanKind::kUnwant: {
        std::lock_guard<std::mutex> lock(mutex_);
        // One that was withdrawn meanwhile has been told so.
        if (const auto at = subscriber->edges.find(record.edge); at != subscriber->edges.end())
          withdraw(at->second);
        break;
      }
      case wire::PlanKind::kAbort: {
        bool there;
        {
          std::lock_guard<std::mutex> lock(mutex_);
          there = steps_.count(record.step) != 0;
        }
        if (there) subscriber->worker->abort_step(record.step);
        break;
      }
      default:
        return "a record of the plan that only senders of tensors may send";
    }
  }
  return {};
}

// Refused like a call, or beyond what is kept for one peer: it is told that the edge is withdrawn.
std::string PlannedSends::want(const std::shared_ptr<Subscriber>& subscriber,
                               const wire::PlanRecord& record) {
  wire::Edge wanted;
  if (std::string wrong = wire::decode_edge(record.payload, &wanted); !wrong.empty()) return wrong;
  auto edge = std::make_shared<Edge>();
  absl::Status refused = types_of(wanted.head, &edge->dtype, &edge->shape);
  tf::Rendezvous::ParsedKey key;
  if (refused.ok()) refused = subscriber->worker->prepare(wanted.key, &key);
  const uint64_t most =
      static_cast<uint64_t>(kLargestPlanned) / (refused.ok() ? tf::DataTypeSize(edge->dtype) : 1);
  std::lock_guard<std::mutex> lock(mutex_);
  if (subscriber->over) return {};
  if (++subscriber->answers > kMostAnswers) return "a peer that wants more than it listens to";
  if (subscriber->edges.count(record.edge) != 0) return "an edge of a name that is in use";
  if (refused.ok() && wanted.head.elements <= most && can_be_planned(wanted.key)) {
    edge->bytes = wanted.head.elements * tf::DataTypeSize(edge->dtype);
    if (subscriber->edges.size() < kMostEdges && steps_.size() <= kMostToExclude &&
        subscriber->planned_bytes + edge->bytes <= kMostPlannedBytes) {
      edge->key = std::move(wanted.key);
      edge->name = record.edge;
      edge->of = subscriber;
      // The newest connection is the one that the peer uses.
      if (const auto at = edges_.find(edge->key); at != edges_.end()) withdraw(at->second);
      edge->number = ++last_;
      edges_.emplace(edge->key, edge);
      edges_known_.store(edges_.size(), std::memory_order_relaxed);
      subscriber->edges.emplace(edge->name, edge);
      subscriber->planned_bytes += edge->bytes;
      subscriber->messages.add({wire::PlanKind::kAgreed, edge->name, 0, {}});
      for (auto& step : steps_) exclude(step.first, &step.second, subscriber);
      wake(subscriber.get());
      return {};
    }
  }
  subscriber->messages.add({wire::PlanKind::kWithdrawn, record.edge, 0, {}});
  wake(subscriber.get());
  return {};
}

void PlannedSends::withdraw(std::shared_ptr<Edge> edge) {
  Subscriber* const of = edge->of.get();
  edges_.erase(edge->key);
  edges_known_.store(edges_.size(), std::memory_order_relaxed);
  of->edges.erase(edge->name);
  of->planned_bytes -= edge->bytes;
  of->messages.add({wire::PlanKind::kWithdrawn, edge->name, 0, {}});
  wake(of);
}

// ---- sending ----

void PlannedSends::wake(Subscriber* subscriber) {
  if (subscriber->woken || subscriber->waits_for_room) return;
  subscriber->woken = core().events_push(events_, subscriber->id << kTaskBits | kFlush) != 0;
}

// One thread at a time sends, what others add meanwhile, too.
void PlannedSends::flush(const std::shared_ptr<Subscriber>& subscriber, bool all) {
  absl::Status failed;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    subscriber->sends_all |= all;
    if (subscriber->sending) return;
    subscriber->sending = true;
    PlanMessages& messages = subscriber->messages;
    while (failed.ok() && !subscriber->over && !messages.empty() &&
           (subscriber->sends_all || messages.full())) {
      if (!core().call_sendable(subscriber->call)) {
        if (std::exchange(subscriber->waits_for_room, true)) break;
        if (!core().call_notify(subscriber->call, TW_ON_ROOM, events_,
                                subscriber->id << kTaskBits | kRoom))
          failed = absl::ResourceExhaustedError("the worker has no memory left for a plan");
        break;
      }
      std::unique_ptr<PlanMessage> next = messages.take();
      lock.unlock();
      tw_status status{};
      if (PlanMessage::send(std::move(next), subscriber->call, &status) != TW_OK)
        failed = status_of(status);
      lock.lock();
    }
    if (messages.empty()) {
      subscriber->sends_all = false;
      subscriber->answers = 0;
    }
    subscriber->sending = false;
  }
  if (!failed.ok()) close(subscriber, failed);
}

void PlannedSends::close(const std::shared_ptr<Subscriber>& subscriber, const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(subscriber->over, true)) return;
    for (const auto& each : subscriber->edges) edges_.erase(each.second->key);
    edges_known_.store(edges_.size(), std::memory_order_relaxed);
    subscriber->edges.clear();
    subscriber->messages.clear();
    subscribers_.erase(subscriber->id);
  }
  const std::string details = wire::encode_details(view_of(why.message()));
  core().call_finish(subscriber->call, static_cast<int>(why.code()), details.data(), details.size(),
                     kNoPairs, kNoPayload, nullptr, nullptr);
}

}  // namespace tensorwire
