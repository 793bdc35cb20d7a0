// SPDX-License-Identifier: Apache-2.0
#include "planned_receives.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "planned.h"
#include "received.h"
#include "request.h"
#include "statistics.h"
#include "tensorflow/core/platform/logging.h"
#include "thread.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// Steps of the same shape that make an edge planned.
constexpr int kSteps = 2;
// An edge that was unplanned so often is left to calls.
constexpr int kChances = 3;
// Edges that are remembered; those that never came to be planned give way.
constexpr size_t kMostRemembered = 4 * kMostEdges;
// Steps that a sender may have excluded at a time.
constexpr size_t kMostExcluded = 4096;
constexpr size_t kMostWords = wire::kMaxRequest / 2;

// All plans of the process.
struct Plans {
  static Plans& get() {
    static Plans* const plans = new Plans;
    return *plans;
  }
  std::mutex mutex;  // guards what follows
  std::vector<std::weak_ptr<PlannedReceives>> all;
};

}  // namespace

std::shared_ptr<PlannedReceives> PlannedReceives::make(tw_link* link, Transport& by) {
  auto made = std::make_shared<PlannedReceives>(link, by);
  Plans& plans = Plans::get();
  std::lock_guard<std::mutex> lock(plans.mutex);
  auto& all = plans.all;
  for (size_t i = 0; i < all.size();)
    if (all[i].expired()) {
      all[i] = std::move(all.back());
      all.pop_back();
    } else {
      ++i;
    }
  all.push_back(made);
  return made;
}

void PlannedReceives::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  over_ = true;
  if (!call_) return;
  core().call_cancel(call_, TW_CODE_CANCELLED, "the link is let go of");
}

// ---- who receives ----

PlannedReceives::Found PlannedReceives::find(int64_t step, const std::string& key,
                                             const std::shared_ptr<PushWaiter>& waiter,
                                             Pushed* out) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (planned_.empty()) return Found::kAsk;
  const auto at = edges_.find(key);
  if (at == edges_.end()) return Found::kAsk;
  Edge* const edge = at->second.get();
  const auto in = steps_.find(step);
  if (in != steps_.end()) {
    if (const auto slot = in->second.slots.find(edge); slot != in->second.slots.end()) {
      if (slot->second.state != Slot::kPushed) {
        repeats(edge);
        return Found::kAsk;
      }
      *out = claim(&slot->second);
      return Found::kTensor;
    }
  }
  if (over_ || edge->state != Edge::kAgreed || excluded_.count(step) != 0) return Found::kAsk;
  Slot& slot = (in != steps_.end() ? in->second : steps_[step]).slots[edge];
  slot.state = Slot::kAwaited;
  slot.waiter = waiter;
  return Found::kWait;
}

absl::Status PlannedReceives::find_pushed(int64_t step, const std::string& key,
                                          const std::shared_ptr<PushWaiter>& waiter, Pushed* out,
                                          Found* found) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = edges_.find(key);
  if (over_ || at == edges_.end())
    return absl::UnavailableError("the tensor was sent ahead on a stream that has ended");
  const auto slot = steps_[step].slots.try_emplace(at->second.get());
  if (slot.second) {
    slot.first->second.state = Slot::kAwaited;
    slot.first->second.waiter = waiter;
    *found = Found::kWait;
  } else if (slot.first->second.state == Slot::kPushed) {
    *out = claim(&slot.first->second);
    *found = Found::kTensor;
  } else {
    *found = Found::kAsk;  // that one was claimed, and this is another
  }
  return absl::OkStatus();
}

PlannedReceives::Pushed PlannedReceives::claim(Slot* slot) {
  Pushed pushed = std::move(slot->pushed);
  *slot = {};
  held_bytes_ -= bytes_of(pushed);
  count(statistics().received_planned);
  return pushed;
}

void PlannedReceives::give_up(int64_t step, const std::string& key, const PushWaiter* waiter) {
  std::shared_ptr<PushWaiter> last;  // let go of without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = edges_.find(key);
  const auto in = steps_.find(step);
  if (over_ || at == edges_.end() || in == steps_.end()) return;
  const auto slot = in->second.slots.find(at->second.get());
  if (slot == in->second.slots.end() || slot->second.waiter.get() != waiter) return;
  last = std::move(slot->second.waiter);
  slot->second = {};
  if (std::exchange(in->second.given_up, true)) return;
  say({wire::PlanKind::kAbort, 0, step, {}});
  send_words();
}

void PlannedReceives::learn(int64_t step, const std::string& key, const tf::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.TotalBytes());
  if (!can_be_planned(key) || !tf::DataTypeCanUseMemcpy(tensor.dtype()) || bytes > kLargestPlanned)
    return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (over_) return;
  Edge* const edge = edge_of(key);
  if (!edge || edge->state == Edge::kNever) return;
  const bool again = edge->steps > 0 && edge->last_step == step;
  const bool same = edge->dtype == tensor.dtype() && edge->shape == tensor.shape();
  edge->last_step = step;
  if (again || !same) {
    if (edge->state != Edge::kSeen) unplan(edge);
    if (again) repeats(edge);
    edge->dtype = tensor.dtype();
    edge->shape = tensor.shape();
    edge->steps = 1;
    return;
  }
  if (edge->state != Edge::kSeen || ++edge->steps < kSteps) return;
  if (planned_.size() >= kMostEdges || planned_bytes_ + bytes > kMostPlannedBytes) return;
  edge->state = Edge::kWanted;
  edge->name = ++last_name_;
  planned_.emplace(edge->name, Planned{edge, edge->dtype, edge->shape, tensor.TotalBytes()});
  planned_bytes_ += bytes;
  const std::string described = wire::encode_edge({head_of(edge->dtype, edge->shape), key});
  say({wire::PlanKind::kWant, edge->name, 0, described});
}

PlannedReceives::Edge* PlannedReceives::edge_of(const std::string& key) {
  if (const auto at = edges_.find(key); at != edges_.end()) return at->second.get();
  if (edges_.size() >= kMostRemembered) {
    std::unordered_set<const Edge*> kept;
    for (const auto& each : planned_) kept.insert(each.second.edge);
    for (const auto& step : steps_)
      for (const auto& slot : step.second.slots) kept.insert(slot.first);
    for (auto at = edges_.begin(); at != edges_.end();)
      at = kept.count(at->second.get()) ? std::next(at) : edges_.erase(at);
  }
  return edges_.emplace(key, std::make_unique<Edge>(key)).first->second.get();
}

// Calls bring it from now on, and what the sender has pushed meanwhile.
void PlannedReceives::unplan(Edge* edge) {
  say({wire::PlanKind::kUnwant, edge->name, 0, {}});
  withdrawn(edge);
}

// A key that comes twice in a step is one of a loop after all.
void PlannedReceives::repeats(Edge* edge) {
  if (edge->state == Edge::kWanted || edge->state == Edge::kAgreed) unplan(edge);
  edge->state = Edge::kNever;
}

void PlannedReceives::withdrawn(Edge* edge) {
  if (edge->state == Edge::kAgreed) count(statistics().unplanned_edges);
  edge->state = ++edge->unplanned < kChances ? Edge::kSeen : Edge::kNever;
  edge->steps = 0;
}

// ---- the end of a step ----

void PlannedReceives::clean_up(int64_t step) {
  std::vector<std::shared_ptr<PlannedReceives>> all;
  {
    Plans& plans = Plans::get();
    std::lock_guard<std::mutex> lock(plans.mutex);
    for (const auto& each : plans.all)
      if (auto plan = each.lock()) all.push_back(std::move(plan));
  }
  for (const auto& each : all) each->end(step);
}
void PlannedReceives::end(int64_t step) {
  Waiters waiters;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    drop(step, &waiters);
    send_words();
  }
  for (const auto& each : waiters) each->not_pushed();
}

// What nobody has claimed is no longer planned.
void PlannedReceives::drop(int64_t step, Waiters* out) {
  const auto in = steps_.find(step);
  if (in == steps_.end()) return;
  take_waiters(&in->second, nullptr, out);
  for (const auto& slot : in->second.slots) {
    if (slot.second.state != Slot::kPushed) continue;
    count(statistics().planned_dropped);
    held_bytes_ -= bytes_of(slot.second.pushed);
    Edge* const edge = edges_.find(slot.first->key)->second.get();
    if (edge->state != Edge::kSeen && edge->state != Edge::kNever) unplan(edge);
  }
  if (in->second.pushes) --steps_with_pushes_;
  steps_.erase(in);
}

// edge: null: all of them.
void PlannedReceives::take_waiters(Step* step, const Edge* edge, Waiters* out) {
  for (auto& slot : step->slots) {
    if (slot.second.state != Slot::kAwaited || (edge && slot.first != edge)) continue;
    out->push_back(std::move(slot.second.waiter));
    slot.second = {};
  }
}

// ---- what is said to the sender ----

void PlannedReceives::say(const wire::PlanRecord& record) {
  const auto prefix = wire::encode_plan_prefix(record);
  words_.append(prefix.data(), prefix.size()).append(record.payload);
  if (words_.size() > kMostWords) send_words();
}

void PlannedReceives::send_words() {
  if (words_.empty() || over_ || (!call_ && !open())) return;
  auto* const words = new std::string(std::move(words_));
  words_.clear();
  const tw_segment segment{words->data(), words->size()};
  const tw_owner owner{[](void* of) { delete static_cast<std::string*>(of); }, words};
  const tw_wait now{0, nullptr, nullptr};
  tw_status status{};
  if (core().call_send(call_, {&segment, 1, &owner, nullptr}, 0, &now, &status) != TW_OK)
    core().call_cancel(call_, TW_CODE_RESOURCE_EXHAUSTED, "the sender does not listen");
}

bool PlannedReceives::open() {
  tw_status status{};
  if (core().peer_start(link_, kPlan.data(), kPlan.size(), kNoPairs, kNoPayload, 0, nullptr, &call_,
                        &status) != TW_OK) {
    over_ = true;
    return false;
  }
  if (start_detached("tensorwire-plan",
                     [self = shared_from_this(), call = call_] { self->run(call); }))
    return true;
  tw_client_call* const unheard = std::exchange(call_, nullptr);
  over_ = true;
  core().call_cancel(unheard, TW_CODE_RESOURCE_EXHAUSTED, "no thread to listen to the sender");
  core().call_release(unheard);
  return false;
}

// ---- what the sender says ----

void PlannedReceives::run(tw_client_call* call) {
  for (;;) {
    tw_message* message = nullptr;
    tw_status status{};
    if (core().call_receive(call, nullptr, &message, &status) != TW_OK || !message) break;
    Deliveries arrived;
    const std::string wrong = hear(message, &arrived);
    core().message_release(message);
    deliver(std::move(arrived));
    if (wrong.empty()) continue;
    count(statistics().plans_refused);
    LOG(WARNING) << "tensorwire: a plan is given up: " << absl::CEscape(wrong);
    core().call_cancel(call, TW_CODE_INTERNAL, wrong.c_str());
    break;
  }
  int32_t code = 0;
  tw_metadata* trailing = nullptr;
  tw_status outcome{};
  core().call_outcome(call, nullptr, &code, &trailing, &outcome);
  if (trailing) core().metadata_release(trailing);
  fail(code == 0 ? absl::UnavailableError("the sender has ended the plan")
                 : status_of(code, outcome.details));
  core().call_release(call);
}

void PlannedReceives::fail(const absl::Status& why) {
  Waiters waiters;
  std::unordered_map<int64_t, Step> steps;  // let go of without the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    call_ = nullptr;
    steps.swap(steps_);
    for (auto& step : steps) take_waiters(&step.second, nullptr, &waiters);
    planned_.clear();
    edges_.clear();
    words_.clear();
  }
  for (const auto& each : waiters) each->push_failed(why);
}

// In one task of the pool: what follows each of them is then put into the queue of a thread that is
// awake, where it would else have to wake one.
void PlannedReceives::deliver(Deliveries all) {
  if (all.empty()) return;
  count(statistics().received_planned, all.size());
  tf::thread::ThreadPool* const pool = all.front().to->pool();
  pool->Schedule([all = std::move(all)] {
    for (const Delivery& each : all) each.to->pushed(each.pushed.tensor, each.pushed.dead);
  });
}

std::string PlannedReceives::hear(tw_message* message, Deliveries* out) {
  const size_t segments = core().message_count(message);
  if (segments == 0) return "a message of the plan without records";
  const tw_segment records = core().message_segment(message, 0);
  // What is kept of the message may keep all of it.
  if (records.size > wire::kMaxRequest) return "a message of the plan that is too long";
  std::string_view bytes(static_cast<const char*>(records.data), records.size);
  size_t next = 1;
  while (!bytes.empty()) {
    wire::PlanRecord record;
    std::string wrong = wire::decode_plan_record(&bytes, &record);
    if (wrong.empty())
      wrong = record.kind >= wire::PlanKind::kTensor ? hear_tensor(record, message, &next, out)
                                                     : hear_word(record);
    if (!wrong.empty()) return wrong;
  }
  return next == segments ? "" : "a message of the plan with more segments than records";
}

std::string PlannedReceives::hear_tensor(const wire::PlanRecord& record, tw_message* message,
                                         size_t* next, Deliveries* out) {
  size_t bytes = record.payload.size();
  if (record.kind == wire::PlanKind::kSegment) {
    if (*next >= core().message_count(message)) return "a planned tensor without its segment";
    bytes = core().message_segment(message, *next).size;
  }
  const Planned* planned;  // until this thread hears that it was withdrawn
  if (std::string wrong = admit(record, bytes, &planned); !wrong.empty()) return wrong;
  Pushed pushed;
  absl::Status made;
  if (record.kind == wire::PlanKind::kDead)
    pushed.dead = true;
  else if (record.kind == wire::PlanKind::kTensor)
    made = receive_bytes({record.payload.data(), record.payload.size()}, by_, tf::cpu_allocator(),
                         planned->dtype, planned->shape, &pushed.tensor);
  else
    made = receive_segment(message, (*next)++, by_, tf::cpu_allocator(), planned->dtype,
                           planned->shape, &pushed.tensor);
  if (!made.ok()) return std::string(made.message());
  std::shared_ptr<PushWaiter> waiter;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Step& step = steps_[record.step];
    if (!std::exchange(step.pushes, true)) ++steps_with_pushes_;
    const auto slot = step.slots.try_emplace(planned->edge);
    Slot& of = slot.first->second;
    if (slot.second) {
      of.state = Slot::kPushed;
      held_bytes_ += bytes_of(pushed);
      of.pushed = std::move(pushed);
    } else if (of.state == Slot::kAwaited) {
      waiter = std::move(of.waiter);
      of = {};
    } else {
      count(statistics().planned_dropped);  // whoever waited for it has given up, or has another
    }
  }
  if (waiter) out->push_back({std::move(waiter), std::move(pushed)});
  return {};
}

std::string PlannedReceives::admit(const wire::PlanRecord& record, size_t bytes,
                                   const Planned** out) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = planned_.find(record.edge);
  if (at == planned_.end()) return "a tensor of an edge that is not planned";
  *out = &at->second;
  if (record.kind != wire::PlanKind::kDead && bytes != at->second.bytes)
    return "a planned tensor of another size";
  const auto in = steps_.find(record.step);
  if ((in == steps_.end() || !in->second.pushes) && steps_with_pushes_ == kMostSteps)
    return "planned tensors of too many steps at a time";
  if (in != steps_.end()) {
    const auto slot = in->second.slots.find(at->second.edge);
    if (slot != in->second.slots.end()) {
      if (slot->second.state == Slot::kPushed) return "a planned tensor that comes twice in a step";
      return {};
    }
  }
  if (bytes > kMostHeld - held_bytes_) return "more planned tensors than are kept unclaimed";
  return {};
}

std::string PlannedReceives::hear_word(const wire::PlanRecord& record) {
  Waiters waiters;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = planned_.find(record.edge);
    const auto in = steps_.find(record.step);
    switch (record.kind) {
      case wire::PlanKind::kAgreed: {
        if (at == planned_.end()) return "an edge is agreed on that is not planned";
        Edge* const edge = at->second.edge;
        if (edge->name != record.edge || edge->state != Edge::kWanted) break;  // no longer wanted
        edge->state = Edge::kAgreed;
        count(statistics().planned_edges);
        break;
      }
      case wire::PlanKind::kWithdrawn: {
        if (at == planned_.end()) return "an edge is withdrawn that is not planned";
        Edge* const edge = at->second.edge;
        planned_bytes_ -= at->second.bytes;
        planned_.erase(at);
        if (edge->name == record.edge) {
          if (edge->state == Edge::kWanted || edge->state == Edge::kAgreed) withdrawn(edge);
          for (auto& step : steps_) take_waiters(&step.second, edge, &waiters);
        }
        break;
      }
      case wire::PlanKind::kExcluded:
        if (excluded_.size() == kMostExcluded) return "too many steps are excluded at a time";
        excluded_.insert(record.step);
        if (in != steps_.end()) take_waiters(&in->second, nullptr, &waiters);
        break;
      case wire::PlanKind::kEnded:
        excluded_.erase(record.step);
        drop(record.step, &waiters);
        break;
      default:
        return "a record of the plan that only receivers of tensors may send";
    }
  }
  for (const auto& each : waiters) each->not_pushed();
  return {};
}

}  // namespace tensorwire
