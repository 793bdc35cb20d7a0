// SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "completion.h"
#include "statistics.h"
#include "tensorflow/core/platform/logging.h"
#include "thread.h"

namespace tensorwire {

namespace {

// For members that have all entered the meeting to join.
constexpr int64_t kJoinNs = 10'000'000'000;
constexpr int64_t kAnswerMs = 30'000;

// Messages to the first member, and from it.
constexpr uint64_t kToFirst = 1;
constexpr uint64_t kFromFirst = 2;

// More than TensorFlow ever has.
constexpr size_t kMaxWaiting = 1 << 20;

constexpr const char* kHost = "TENSORWIRE_GROUP_HOST";

absl::Status closed() { return absl::CancelledError("the worker's cluster is defined anew"); }

int report(tw_status* status, const absl::Status& why) {
  *status = {};
  status->code = static_cast<int>(why.code());
  const size_t size = std::min(sizeof status->details - 1, why.message().size());
  why.message().copy(status->details, size);
  return status->code;
}

}  // namespace

Group::~Group() = default;

int Group::closing(void* group) {
  auto* const self = static_cast<Group*>(group);
  const std::lock_guard<std::mutex> lock(self->mutex_);
  return self->closing_ ? 1 : 0;
}

void Group::begin(Work work) {
  uint64_t ticket = 0;
  absl::Status failure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kNew) {
      phase_ = Phase::kMeeting;
      if (!start_detached("tensorwire-team", [self = shared_from_this()] { self->meet(); })) {
        phase_ = Phase::kOver;
        failure_ = absl::ResourceExhaustedError("no thread for a group of collectives");
      }
    }
    if (phase_ == Phase::kMeeting || phase_ == Phase::kTogether) {
      ticket = ++last_ticket_;
      waiting_.emplace(ticket, std::move(work));
      if (phase_ == Phase::kMeeting) return;
    }
    failure = failure_;
  }
  if (ticket != 0)
    announce(ticket);
  else if (failure.ok())
    work.leave();
  else
    work.done(failure);
}

void Group::abort(const absl::Status& why) {
  fail(why);
  attendance_.stop();
  bool joined;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    joined = group_ != nullptr;
  }
  const absl::string_view said = why.message();
  if (joined)
    core().group_abort(group_.get(), wire::encode_details({said.data(), said.size()}).c_str());
}

void Group::close() {
  bool idle;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    idle = waiting_.empty() && !running_;
    changed_.notify_all();
  }
  if (!idle) return abort(closed());
  attendance_.stop();
}

// ---- getting together ----

wire::MeetingRequest Group::request(wire::Meeting kind) const {
  wire::MeetingRequest made;
  made.kind = kind;
  made.rank = seat_.rank;
  made.size = static_cast<uint32_t>(seat_.tasks.size());
  made.session = session_;
  return made;
}

// The thread that the group begins with: on the first member it goes on to take what others tell,
// on the others to run operations as well.
void Group::meet() {
  bool together = false;
  absl::Status status = joins_groups(seat_.workers, seat_.tasks[0], &together);
  if (status.ok() && together) {
    wire::MeetingRequest enter = request(wire::Meeting::kEnter);
    enter.key = seat_.identity;
    enter.value = absl::StrCat(absl::StrJoin(seat_.tasks, "\n"), "\n");
    std::string answer;
    status = attendance_.ask(enter, 0, &answer);
    uint64_t session = 0;
    if (status.ok())
      if (const std::string why = wire::decode_session(answer, &session); !why.empty())
        status = absl::InternalError(why);
    together = session != 0;
    if (status.ok() && together) status = join(session, &together);
  }
  if (!status.ok()) {
    const std::string what =
        absl::StrCat("the collective's members did not meet at ", seat_.tasks[0]);
    return fail({status.code(), from_remote(status.message(), seat_.tasks[0], what)});
  }
  std::map<uint64_t, Work> waiting;
  std::vector<uint64_t> tickets;
  absl::Status failure;  // meanwhile
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kMeeting) phase_ = together ? Phase::kTogether : Phase::kApart;
    failure = failure_;
    if (phase_ == Phase::kApart) waiting.swap(waiting_);
    for (const auto& [ticket, work] : waiting_) tickets.push_back(ticket);
  }
  if (!failure.ok()) {
    if (group_) abort(failure);
    return;
  }
  if (!together) {
    LOG(INFO) << "tensorwire: collectives of " << seat_.tasks.size() << " workers from "
              << seat_.tasks[0] << " on go by TensorFlow's own algorithms";
    for (const auto& [ticket, work] : waiting) work.leave();
    return;
  }
  count(statistics().groups);
  if (first() &&
      !start_detached("tensorwire-turn", [self = shared_from_this()] { self->run_turns(); }))
    return abort(absl::ResourceExhaustedError("no thread for a group of collectives"));
  for (const uint64_t ticket : tickets) announce(ticket);
  take_messages();
}

// *together: whether all members have joined.
absl::Status Group::join(uint64_t session, bool* together) {
  session_ = session;
  const tw_store store{
      this,
      [](void* self, const char* key, const void* value, size_t size, tw_status* status) {
        return static_cast<Group*>(self)->set(key, value, size, status);
      },
      [](void* self, const char* key, int64_t timeout_ns, tw_give give, void* sink,
         tw_status* status) {
        return static_cast<Group*>(self)->get(key, timeout_ns, give, sink, status);
      }};
  char named[256];
  tw_status status{};
  const bool has_host =
      core().read_setting(kHost, named, sizeof named, &status) == TW_OK && named[0] != '\0';
  const tw_wait wait{kJoinNs, closing, this};
  tw_group* made = nullptr;
  status = {};
  const int code =
      core().group_join(&store, static_cast<int>(seat_.rank), static_cast<int>(seat_.tasks.size()),
                        has_host ? nullptr : seat_.host.c_str(), 0, &wait, &made, &status);
  std::unique_ptr<tw_group, void (*)(tw_group*)> group(made, core().group_release);
  wire::MeetingRequest joined = request(wire::Meeting::kJoined);
  if (code != TW_OK) {
    joined.value = status.details[0] != '\0' ? status.details : "it could not join";
    LOG(WARNING) << "tensorwire: no group of the workers of " << seat_.tasks[0]
                 << "'s collectives: " << absl::CEscape(joined.value);
  }
  std::string answer;
  absl::Status told = attendance_.ask(joined, kAnswerMs, &answer);
  if (!told.ok()) return told;
  if (const std::string why = wire::decode_session(answer, &session); !why.empty())
    return absl::InternalError(why);
  *together = session != 0;
  if (!*together) return absl::OkStatus();
  if (!group) return absl::InternalError("the others have joined without this member");
  LOG(INFO) << "tensorwire: collectives of " << seat_.tasks.size() << " workers go by a group over "
            << core().group_fabric(group.get());
  if (first()) turns_.emplace(seat_.tasks.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  group_ = std::move(group);
  return absl::OkStatus();
}

int Group::set(const char* key, const void* value, size_t size, tw_status* status) {
  wire::MeetingRequest made = request(wire::Meeting::kSet);
  made.key = key;
  made.value.assign(static_cast<const char*>(value), size);
  std::string none;
  const absl::Status done = attendance_.ask(made, kAnswerMs, &none);
  return done.ok() ? TW_OK : report(status, done);
}

int Group::get(const char* key, int64_t timeout_ns, tw_give give, void* sink, tw_status* status) {
  wire::MeetingRequest made = request(wire::Meeting::kGet);
  made.key = key;
  std::string value;
  const int64_t ms = timeout_ns < 0 ? kAnswerMs : std::max<int64_t>(timeout_ns / 1'000'000, 1);
  const absl::Status done = attendance_.ask(made, ms, &value);
  if (!done.ok()) return report(status, done);
  give(sink, value.data(), value.size());
  return TW_OK;
}

// ---- turns ----

bool Group::tell(int rank, uint64_t tag, const wire::Turn& turn) {
  const auto bytes = wire::encode_turn(turn);
  const tw_wait wait{-1, closing, this};
  tw_status status{};
  if (core().group_send(group_.get(), rank, tag, bytes.data(), bytes.size(), &wait, &status) ==
      TW_OK)
    return true;
  fail(error_of(status));
  return false;
}

void Group::announce(uint64_t ticket) {
  const std::lock_guard<std::mutex> order(telling_);
  wire::Turn turn;
  turn.ticket = ticket;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = waiting_.find(ticket);
    if (at == waiting_.end()) return;  // the group is over
    turn.key = at->second.key;
  }
  if (!first())
    tell(0, kToFirst, turn);
  else if (const auto tickets = turns_->ready(0, turn.key, ticket))
    give_turns(*tickets);
}

// With telling_: each member gets its turns in the same order.
void Group::give_turns(const Turns::Tickets& tickets) {
  for (size_t rank = 1; rank < tickets.size(); ++rank) {
    wire::Turn turn;
    turn.kind = wire::TurnKind::kRun;
    turn.ticket = tickets[rank];
    if (!tell(static_cast<int>(rank), kFromFirst, turn)) return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  turn_.push_back(tickets[0]);
  changed_.notify_all();
}

void Group::take_messages() {
  const tw_wait wait{-1, closing, this};
  for (;;) {
    std::array<char, wire::kTurnSize> bytes;
    tw_status status{};
    int rank = 0;
    const int code = first() ? core().group_receive_any(group_.get(), kToFirst, bytes.data(),
                                                        bytes.size(), &rank, &wait, &status)
                             : core().group_receive(group_.get(), rank, kFromFirst, bytes.data(),
                                                    bytes.size(), &wait, &status);
    if (code != TW_OK) return fail(error_of(status));
    wire::Turn turn;
    const std::string why = wire::decode_turn({bytes.data(), bytes.size()}, &turn);
    if (!why.empty() || !take_message(rank, turn))
      return abort(absl::InternalError(absl::StrCat(
          seat_.tasks[rank], " has sent what no member sends", why.empty() ? "" : ": ", why)));
  }
}

// False: it is none of those that are sent this way.
bool Group::take_message(int rank, const wire::Turn& turn) {
  if (turn.kind != (first() ? wire::TurnKind::kReady : wire::TurnKind::kRun)) return false;
  if (!first()) {
    run(turn.ticket);
    return true;
  }
  const std::lock_guard<std::mutex> order(telling_);
  if (turns_->waiting() >= kMaxWaiting) return false;
  if (const auto tickets = turns_->ready(static_cast<size_t>(rank), turn.key, turn.ticket))
    give_turns(*tickets);
  return true;
}

void Group::run_turns() {
  for (;;) {
    uint64_t ticket;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !turn_.empty() || closing_ || phase_ == Phase::kOver; });
      if (phase_ == Phase::kOver || turn_.empty()) return;
      ticket = turn_.front();
      turn_.pop_front();
    }
    run(ticket);
  }
}

void Group::run(uint64_t ticket) {
  std::optional<Work> work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ != Phase::kTogether) return;
    const auto at = waiting_.find(ticket);
    if (at != waiting_.end()) {
      work.emplace(std::move(at->second));
      waiting_.erase(at);
      running_ = true;
    }
  }
  if (!work) return abort(absl::InternalError("it is the turn of a collective that is not there"));
  tw_status failure{};
  absl::Status status;
  if (work->operation.run(group_.get(), &failure) == TW_OK) {
    count(statistics().collective_grouped);
    count(statistics().collective_grouped_bytes, work->operation.bytes());
  } else {
    fail(error_of(failure));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_ = false;
    if (failure.code != TW_CODE_OK) status = failure_;
  }
  // What TensorFlow does next may block, and other operations have their turns. It reuses memory
  // that nobody else refers to.
  const auto done = std::move(work->done);
  work.reset();
  run_soon([done, status] { done(status); });
}

// ---- its end ----

absl::Status Group::error_of(const tw_status& status) const {
  if (status.code == TW_CODE_OK) return closed();  // a wait was interrupted
  return {static_cast<absl::StatusCode>(status.code),
          absl::StrCat(status.details, "; the ranks of the collective are, in this order: ",
                       absl::StrJoin(seat_.tasks, ", "))};
}

// What runs ends by itself.
void Group::fail(const absl::Status& why) {
  std::map<uint64_t, Work> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kOver) return;
    phase_ = Phase::kOver;
    failure_ = why;
    waiting.swap(waiting_);
    changed_.notify_all();
  }
  // Whoever ends it may hold locks that these need.
  for (auto& [ticket, work] : waiting) run_soon([done = std::move(work.done), why] { done(why); });
}

}  // namespace tensorwire
