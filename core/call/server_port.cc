// SPDX-License-Identifier: Apache-2.0
// The calls of one link, as they come: which are handed out, and which wait.
#include "call/server.h"

namespace tw {

namespace flag = wire::call_flag;

Status ServerPort::on_request(Ref<Parcel> message) {
  Ref<Call> call;
  // A call whose turn comes is among the others first, and is then given the messages that have
  // waited, all under the lock: this one comes behind them. It waits no more after that.
  if (waiting_calls() != 0) {
    const MutexLock lock(waiting_mutex_);
    call = find(message->stream());
    if (!call) {
      const size_t before = waiting_.size();
      auto waits = waiting_.add_to(message);
      if (!waits) return waits.status();
      if (waiting_.size() != before) count_dropped_call();
      waiting_calls_.store(waiting_.size(), std::memory_order_relaxed);
      if (*waits) return {};
    }
  } else {
    call = find(message->stream());
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
  if (server_->refusing_.load(std::memory_order_acquire))
    header = Status{Code::kUnavailable, "the server is going away"};
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
    // All were good before. The first one's header is decoded anew: to keep that for all that wait
    // would take more memory than their messages do.
    if (!call) {
      const auto start = wire::decode_call_header(message->header());
      if (!(call = make_call(message, *start, entry.deadline))) return nullptr;
    }
    const uint8_t flags = *wire::decode_call_flags(message->header());
    const bool end = (flags & flag::kEnd) != 0;
    if (!message->ok())
      refusal = message->status();
    else if ((flags & flag::kPayload) != 0)
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

}  // namespace tw
