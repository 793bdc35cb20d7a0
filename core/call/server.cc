// SPDX-License-Identifier: Apache-2.0
#include "call/server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <new>

#include "base/mutex.h"
#include "base/shortage.h"

namespace tw {

using wire::CallHeader;
namespace flag = wire::call_flag;

namespace {

// Once more replies wait for a client than may, and so many bytes of frames among them, a status is
// cut so short that it takes no more than twice the request that it answers.
constexpr size_t kFullStatuses = 1 << 20;
constexpr std::string_view kCutStatus = "the client has yet to take too many replies";

Status unread_replies(size_t bytes) {
  return {Code::kResourceExhausted,
          "the client has yet to take " + std::to_string(bytes) +
              " bytes of replies: let it take some before it asks for more, or raise the server's "
              "TENSORWIRE_BUFFER_BYTES"};
}

}  // namespace

// ---- the call ----

ServerCall::ServerCall(Ref<ServerPort> port, uint64_t stream, Nanos deadline,
                       ReceivedMetadata metadata, std::string_view method)
    : Call(std::move(port), stream, deadline), metadata_(std::move(metadata)), method_(method) {}

size_t ServerCall::most_unread() const { return link_.runtime().settings().unread_bytes; }

ServerPort& ServerCall::server_port() const { return static_cast<ServerPort&>(*port_); }

bool ServerCall::drop_if_over() {
  if (active()) return false;
  finish(Code::kDeadlineExceeded, kDeadlineDetails);
  port_->count_dropped_call();
  return true;
}

void ServerCall::begun() {
  if (!begun_.load(std::memory_order_relaxed) && !begun_.exchange(true)) server_port().call_begun();
}

void ServerCall::over() {
  server_port().handling_.fetch_sub(1, std::memory_order_relaxed);
  begun();
}

Status ServerCall::send_initial(std::span<const wire::MetadataEntry> metadata) {
  if (Status status = wire::check_metadata(metadata); !status.ok()) return status;
  if (ended()) return {Code::kCancelled, "the call has ended"};
  if (link_.queued() > most_unread()) return unread_replies(link_.queued());
  if (initial_sent_.exchange(true))
    return {Code::kFailedPrecondition, "the call's initial metadata has been sent before"};
  CallHeader header;
  header.flags = flag::kInitial;
  header.initial = metadata;
  auto sent = send(header, {}, false);
  return sent ? Status{} : sent.status();
}

Result<Ref<Outgoing>> ServerCall::send_message(std::span<OutSegment> segments, bool defer) {
  if (ended()) return Status{Code::kCancelled, "the call has ended"};
  // Credit is the client's to give. Large messages wait where they are, small ones are copied.
  if (link_.queued() > most_unread()) return unread_replies(link_.queued());
  CallHeader header;
  header.flags = flag::kPayload;
  return send(header, segments, false, defer);
}

bool ServerCall::finish(Code code, std::string_view details,
                        std::span<const wire::MetadataEntry> trailing, bool payload,
                        std::span<OutSegment> segments, const Keeper& keeper) {
  Ref<Outgoing> outgoing;
  if (!send_end(code, details, trailing, payload, segments, false, outgoing)) return false;
  if (outgoing) {
    pace(*outgoing);
    depart(outgoing, segments, keeper);
  }
  return true;
}

// `driving`: the caller has the baton.
bool ServerCall::send_end(Code code, std::string_view details,
                          std::span<const wire::MetadataEntry> trailing, bool payload,
                          std::span<OutSegment> segments, bool driving, Ref<Outgoing>& outgoing) {
  if (!begin_ending()) return false;
  // Whatever becomes of the reply, the call has ended.
  link_.surely([&] {
    CallHeader header;
    header.flags = flag::kEnd;
    if (payload) header.flags |= flag::kPayload;
    if (!trailing.empty()) header.flags |= flag::kTrailing;
    header.code = code;
    header.details = details;
    header.trailing = trailing;
    const size_t unread = link_.backlog();
    const bool crowded = unread > most_unread();
    if (crowded && link_.queued() > kFullStatuses) {
      send_status(payload ? Code::kResourceExhausted : code, kCutStatus, driving);
    } else {
      auto sent = crowded && payload ? Result<Ref<Outgoing>>(unread_replies(unread))
                                     : send(header, segments, driving);
      if (sent)
        outgoing = std::move(*sent);
      else if (payload)  // what this one message cannot carry, the client must at least hear of
        send_status(sent.status().code(), sent.status().details(), driving);
    }
  });
  over();
  finish_ending(true);
  if (!driving) link_.nudge(event_);
  return true;
}

void ServerCall::send_status(Code code, std::string_view details, bool driving) {
  CallHeader header;
  header.flags = flag::kEnd;
  header.code = code;
  header.details = details;
  (void)send(header, {}, driving);
}

// Nobody waits for a reply that is slow to be taken.
void ServerCall::depart(const Ref<Outgoing>& outgoing, std::span<OutSegment> segments,
                        const Keeper& keeper) {
  Status status;
  try {
    status = leave(outgoing, segments, keeper);
  } catch (const std::bad_alloc&) {
    const Shortage shortage;  // the caller's memory is its own again all the same
    if (link_.withdraw(outgoing))
      status = {Code::kResourceExhausted, "this process has no memory left for the message"};
  }
  if (!status.ok()) link_.surely([&] { send_status(status.code(), status.details(), false); });
}

bool ServerCall::finish_and_poll(Code code, std::string_view details,
                                 std::span<const wire::MetadataEntry> trailing, bool payload,
                                 std::span<OutSegment> segments, const Keeper& keeper,
                                 Ref<ServerCall>& next) {
  ServerPort& port = server_port();
  // Taken ahead of the reply: the next request then finds somebody awake, and needs no doorbell.
  if (!link_.try_drive()) {
    const bool finished = finish(code, details, trailing, payload, segments, keeper);
    next = port.server_->take_queued(port);
    return finished;
  }
  port.poll_slot_ = &next;
  Ref<Outgoing> outgoing;
  const bool finished = send_end(code, details, trailing, payload, segments, true, outgoing);
  if (!outgoing) {
    next = port.server_->take_queued(port);
  } else {
    const auto sent = [&] { return !outgoing->borrowed(); };
    link_.at_pace([&](Nanos until) { return link_.drive(sent, until); });
  }
  link_.drive_briefly([&] { return static_cast<bool>(next) || (outgoing && outgoing->borrowed()); },
                      [&] { port.poll_slot_ = nullptr; });
  if (outgoing) depart(outgoing, segments, keeper);
  return finished;
}

Status ServerCall::on_message(Ref<Parcel> message) {
  auto header = wire::decode_call_header(message->header());
  if (!header) return header.status();
  if (header->has(flag::kCancel)) {
    if (begin_ending()) {
      over();
      finish_ending();
    }
    return {};
  }
  if (header->has(flag::kStart))
    return {Code::kInternal, "protocol error: a call was started twice"};
  if (const Status why = message->status(); !why.ok()) {
    finish(why.code(), why.details());
    return {};
  }
  const bool end = header->has(flag::kEnd);
  if (header->has(flag::kInitial))
    return {Code::kInternal, "protocol error: a client sends metadata when it starts a call"};
  if (header->has(flag::kPayload)) {
    if (input_ended())
      return {Code::kInternal, "protocol error: a message after the last one of its call"};
    if (!enqueue(std::move(message)))
      return {Code::kInternal, "protocol error: a message without credit"};
  }
  if (end) {
    end_input();
    tell();
  }
  return {};
}

void ServerCall::on_closing(const Status& why) { finish(Code::kUnavailable, why.details()); }

void ServerCall::on_lost(const Status&) {
  if (!begin_ending()) return;
  over();
  finish_ending();
}

// ---- the port ----

Status ServerPort::on_request(Ref<Parcel> message) {
  // In this order: a call is among the others before it waits no more.
  const bool some_wait = waiting_calls() != 0;
  Ref<Call> call = find(message->stream());
  if (!call && some_wait) {
    const MutexLock lock(waiting_mutex_);
    const size_t before = waiting_.size();
    auto waits = waiting_.add_to(message);
    if (!waits) return waits.status();
    if (waiting_.size() != before) count_dropped_call();
    waiting_calls_.store(waiting_.size(), std::memory_order_relaxed);
    if (*waits) return {};
    call = find(message->stream());  // its turn may just have come
  }
  if (call) return static_cast<ServerCall&>(*call).on_message(std::move(message));
  return begin(std::move(message));
}

Status ServerPort::begin(Ref<Parcel> message) {
  auto header = wire::decode_call_header(message->header());
  if (!header) return header.status();
  const uint64_t stream = message->stream();
  // Without a start it is about a call that has ended here, which the peer does not know yet. Its
  // reply may still be on its way.
  if (header->has(flag::kCancel)) link_.withdraw_stream(stream);
  if (!header->has(flag::kStart)) return {};
  if (const Status why = message->status(); !why.ok()) {
    answer(stream, why.code(), why.details());
    return {};
  }
  {
    const MutexLock lock(server_->mutex_);
    if (server_->refusing_) header = Status{Code::kUnavailable, "the server is going away"};
  }
  if (!header) {
    answer(stream, header.status().code(), header.status().details());
    return {};
  }
  const Nanos deadline =
      header->timeout_ns == 0 || header->timeout_ns > static_cast<uint64_t>(kForever)
          ? kForever
          : deadline_after(static_cast<Nanos>(header->timeout_ns));
  const bool end = header->has(flag::kEnd);
  if (waiting_calls() != 0 || unbegun_.load(std::memory_order_relaxed) >= kMostUnbegun) {
    bool waits;
    {
      const MutexLock lock(waiting_mutex_);
      waits = waiting_.add(message, deadline, link_.runtime().settings().stream_window_bytes, end);
      // In this order, and in the other one in call_begun(): one of the two sees the other.
      waiting_calls_.store(waiting_.size(), std::memory_order_seq_cst);
    }
    if (!waits) {
      refused_calls_.fetch_add(1, std::memory_order_relaxed);
      answer(stream, Code::kResourceExhausted, "too many calls wait on this link: try again later");
    }
    move_up();
    return {};
  }
  unbegun_.fetch_add(1, std::memory_order_relaxed);
  Ref<ServerCall> call = make_call(message, *header, deadline);
  if (!call) return {};
  if (header->has(flag::kPayload) && !call->enqueue(std::move(message)))
    return {Code::kInternal, "protocol error: a message without credit"};
  if (end) call->end_input();
  if (poll_slot_ && !*poll_slot_)
    *poll_slot_ = std::move(call);
  else
    server_->queue(*this, std::move(call));
  return {};
}

// Null: the link has been lost.
Ref<ServerCall> ServerPort::make_call(const Ref<Parcel>& start, const wire::CallHeaderView& header,
                                      Nanos deadline) {
  auto call =
      Ref<ServerCall>::adopt(new ServerCall(Ref<ServerPort>::share(this), start->stream(), deadline,
                                            {Hold(start), header.initial}, header.method));
  if (!add(*call)) return nullptr;
  handling_.fetch_add(1, std::memory_order_relaxed);
  return call;
}

// Null: none waits, or the link has been lost. `refusal`: one of its
// messages could not be received.
Ref<ServerCall> ServerPort::next_waiting(Status& refusal) {
  CallQueue::Entry entry;
  if (!waiting_.pop(entry)) return nullptr;
  Ref<ServerCall> call;
  while (!entry.messages.empty()) {
    Ref<Parcel> message = entry.messages.pop();
    const auto header = wire::decode_call_header(message->header());  // it was good before
    if (!call && !(call = make_call(message, *header, entry.deadline))) return nullptr;
    const bool end = header->has(flag::kEnd);
    if (!message->ok())
      refusal = message->status();
    else if (header->has(flag::kPayload))
      (void)call->enqueue(std::move(message));
    if (end) call->end_input();
  }
  waiting_calls_.store(waiting_.size(), std::memory_order_release);
  return call;
}

// A call that was handed out needs no place among these any more.
void ServerPort::call_begun() {
  unbegun_.fetch_sub(1, std::memory_order_seq_cst);
  if (waiting_calls_.load(std::memory_order_seq_cst) != 0) link_.surely([this] { move_up(); });
}

// Hands out those that wait, as far as there is room.
void ServerPort::move_up() {
  for (;;) {
    Ref<ServerCall> call;
    Status refusal;
    {
      const MutexLock lock(waiting_mutex_);
      if (unbegun_.load(std::memory_order_seq_cst) >= kMostUnbegun ||
          !(call = next_waiting(refusal)))
        return;
      if (refusal.ok())
        unbegun_.fetch_add(1, std::memory_order_relaxed);
      else
        call->begun_ = true;
    }
    if (refusal.ok()) {
      server_->queue(*this, std::move(call));
    } else {
      call->finish(refusal.code(), refusal.details());
    }
  }
}

void ServerPort::on_closing(const Status& why) {
  for (;;) {
    CallQueue::Entry entry;
    {
      const MutexLock lock(waiting_mutex_);
      if (!waiting_.pop(entry)) break;
      waiting_calls_.store(waiting_.size(), std::memory_order_relaxed);
    }
    answer(entry.messages.front().stream(), Code::kUnavailable, why.details());
  }
  CallPort::on_closing(why);
}

void ServerPort::end_all(const Status& why) {
  {
    const MutexLock lock(waiting_mutex_);
    waiting_.clear();
    waiting_calls_.store(0, std::memory_order_relaxed);
  }
  CallPort::end_all(why);
  server_->tell_peers_changed();
}

void ServerPort::on_gone() { server_->forget(*this); }

// ---- the server ----

// After close() nobody is in next() any more, but peers may still hold leases: the background then
// polls in its place, until the last link has gone.
class Server::Drain final : public Watcher {
 public:
  explicit Drain(Ref<Server> server) : server_(std::move(server)) {}

  Status begin() {
    auto background = server_->runtime_.background();
    if (!background) return background.status();
    const MutexLock lock(mutex_);
    auto watch = (*background)->watch(server_->poller_->fd(), EPOLLIN, Ref<Watcher>::share(this));
    if (!watch) return watch.status();
    background_ = *background;
    watch_ = *watch;
    return {};
  }

 private:
  void on_event(uint32_t, uint32_t) override {
    server_->poller_->poll(0);
    if (!server_->deserted()) return;
    const MutexLock lock(mutex_);
    background_->unwatch(watch_, server_->poller_->fd());
  }

  const Ref<Server> server_;
  Mutex mutex_;  // guards what follows: the first event may come before begin() is through
  Poller* background_ TW_GUARDED_BY(mutex_) = nullptr;
  Poller::Watch watch_ TW_GUARDED_BY(mutex_) = 0;
};

Result<Ref<Server>> Server::create(uint64_t max_message) {
  auto runtime = Runtime::get();
  if (!runtime) return runtime.status();
  auto poller = Poller::create();
  if (!poller) return poller.status();
  return Ref<Server>::adopt(new Server(**runtime, std::move(*poller), max_message));
}

Server::Server(Runtime& runtime, std::unique_ptr<Poller> poller, uint64_t max_message)
    : runtime_(runtime), max_message_(max_message), poller_(std::move(poller)) {
  listener_ = make_ref<meet::Listener>(
      runtime_, *poller_, [this](meet::Connected connected) { arrived(std::move(connected)); });
}

void Server::arrived(meet::Connected connected) {
  (void)take_in(std::move(connected), max_message_, Link::Role::kServer, {});
}

Result<Ref<CallPort>> Server::join(meet::Connected connected, uint64_t max_message,
                                   const Wanted& wanted) {
  return take_in(std::move(connected), max_message, Link::Role::kClient, wanted);
}

Result<Ref<CallPort>> Server::take_in(meet::Connected connected, uint64_t max_message,
                                      Link::Role role, const Wanted& wanted) {
  const auto link = make_ref<Link>(runtime_, std::move(connected.transport),
                                   std::move(connected.peer), max_message, role, wanted);
  ServerPort& port = link->attach<ServerPort>(Ref<Server>::share(this));
  {
    const MutexLock lock(mutex_);
    if (closed_)
      return Status{Code::kUnavailable, "the server that is to serve the peer is closed"};
    ports_.emplace(&port, Ref<ServerPort>::share(&port));
  }
  // One that cannot be looked after is lost, hence forgotten.
  if (Status status = link->start(*poller_); !status.ok()) return status;
  port.ready_.store(true, std::memory_order_release);
  tell_peers_changed();
  return Ref<CallPort>::share(&port);
}

Status Server::notify_peers(Ref<EventQueue> queue, uint64_t token) {
  Notices notice(std::move(queue), token);
  const MutexLock lock(mutex_);
  if (closed_) return {Code::kUnavailable, "the server is closed"};
  peers_changed_.add(std::move(notice));
  return {};
}

void Server::tell_peers_changed() {
  Notices due;
  {
    const MutexLock lock(mutex_);
    due.swap(peers_changed_);
  }
  due.tell();
}

void Server::queue(ServerPort& port, Ref<ServerCall> call) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;  // it ends with its link
    port.queued_.push_back(std::move(call));
    if (port.queued_.size() == 1) turns_.splice(turns_.end(), port.no_turn_);
  }
  poller_->wake();
}

Ref<ServerCall> Server::take_locked(ServerPort& port) {
  Ref<ServerCall> call = std::move(port.queued_.front());
  port.queued_.pop_front();
  if (port.queued_.empty())
    port.no_turn_.splice(port.no_turn_.begin(), turns_, port.turn_);
  else
    turns_.splice(turns_.end(), turns_, port.turn_);
  return call;
}

Ref<ServerCall> Server::take_queued(ServerPort& port) {
  for (;;) {
    Ref<ServerCall> call;
    {
      const MutexLock lock(mutex_);
      if (port.queued_.empty()) return nullptr;
      call = take_locked(port);
    }
    if (!call->drop_if_over()) return call;
  }
}

Ref<ServerCall> Server::take_turn() {
  const MutexLock lock(mutex_);
  return turns_.empty() ? nullptr : take_locked(*turns_.front());
}

Server::Next Server::next(std::vector<Ref<ServerCall>>& calls, size_t room, Nanos deadline) {
  calls.reserve(room);
  for (;;) {
    bool behind;
    {
      const MutexLock lock(mutex_);
      // Between two batches all links are read, however many calls of some are queued.
      behind = std::exchange(behind_, false);
      if (!behind) {
        while (calls.size() < room && !turns_.empty())
          calls.push_back(take_locked(*turns_.front()));
        behind_ = !turns_.empty();
        if (calls.empty() && closed_) break;
      }
      if (calls.empty()) ++polling_;
    }
    if (!calls.empty()) {
      std::erase_if(calls, [](const auto& call) { return call->drop_if_over(); });
      if (calls.empty()) continue;
      return Next::kCalls;
    }
    const bool signal = !poller_->poll(behind ? 0 : deadline);
    const MutexLock lock(mutex_);
    --polling_;
    if (!turns_.empty() || closed_) continue;
    if (signal) return Next::kSignal;
    if (now() >= deadline) return Next::kTimeout;
  }
  drain();
  return Next::kClosed;
}

// Begins once the server is closed and nobody polls for it: two pollers would take each other's
// wake-ups.
void Server::drain() {
  {
    const MutexLock lock(mutex_);
    if (polling_ != 0 || ports_.empty() || std::exchange(drain_begun_, true)) return;
  }
  try {
    (void)make_ref<Drain>(Ref<Server>::share(this))->begin();
  } catch (const std::bad_alloc&) {
    // Nobody would see leases come home.
    each_port([](ServerPort& port) { port.link().starve(); });
  }
}

void Server::forget(ServerPort& port) {
  Ref<ServerPort> last;
  const MutexLock lock(mutex_);
  auto it = ports_.find(&port);
  if (it == ports_.end()) return;
  last = std::move(it->second);
  ports_.erase(it);
  if (closed_ && ports_.empty()) poller_->wake();  // Drain has nothing left to do
}

// The port after `last`, null at the end.
Ref<ServerPort> Server::port_after(const ServerPort* last) const {
  const MutexLock lock(mutex_);
  const auto at = ports_.upper_bound(const_cast<ServerPort*>(last));
  return at == ports_.end() ? nullptr : at->second;
}

bool Server::deserted() const {
  const MutexLock lock(mutex_);
  return ports_.empty();
}

size_t Server::active() const {
  size_t active = 0;
  each_port(
      [&](const ServerPort& port) { active += port.serving() + (port.link().backlog() != 0); });
  return active;
}

void Server::refuse() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(refusing_, true)) return;
  }
  each_port([](ServerPort& port) {
    Link& link = port.link();
    link.surely([&] { link.go_away(Code::kUnavailable, "the server is shutting down"); });
  });
}

void Server::close() {
  refuse();
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  // One by one, let go of without the lock: they may hold leases.
  for (Ref<ServerCall> call = take_turn(); call; call = take_turn()) {
  }
  listener_->close();
  each_port([](ServerPort& port) {
    Link& link = port.link();
    link.surely([&] { link.close({Code::kCancelled, "the server was closed"}); });
  });
  tell_peers_changed();
  poller_->wake();
  drain();
}

}  // namespace tw
