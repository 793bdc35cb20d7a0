// SPDX-License-Identifier: Apache-2.0
// The calls of one link, as they come: which are handed out, and which wait.
#include "call/server.h"

namespace tw {

namespace flag = wire::call_flag;

namespace {

constexpr std::string_view kClosed = "the link is closed";

}  // namespace

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
  const auto header = header_of(*message);
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
  if (server_->refusing_.load(std::memory_order_acquire)) {
    answer(stream, Code::kUnavailable, "the server is going away");
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
  if (!call) {
    call_begun();
    answer(stream, Code::kUnavailable, kClosed);
    return {};
  }
  if (header->has(flag::kPayload) && !call->enqueue(std::move(message)))
    return {Code::kInternal, "protocol error: a message without credit"};
  if (end) call->end_input();
  if (poll_slot_ && !*poll_slot_)
    *poll_slot_ = std::move(call);
  else
    server_->queue(*this, std::move(call));
  return {};
}

// Null: the link carries no calls any more. The peer may not know yet, and is to be told of this
// one.
Ref<ServerCall> ServerPort::make_call(const Ref<Parcel>& start, const wire::CallHeaderView& header,
                                      Nanos deadline) {
  auto call =
      Ref<ServerCall>::adopt(new ServerCall(Ref<ServerPort>::share(this), start->stream(), deadline,
                                            {Hold(start), header.initial}, header.method));
  if (!add(*call)) return nullptr;
  handling_.fetch_add(1, std::memory_order_relaxed);
  return call;
}

// Of one that has waited. Null: as make_call(). `refusal`: one of its messages could not be
// received.
Ref<ServerCall> ServerPort::make_waiting(CallQueue::Entry& entry, Status& refusal) {
  Ref<Parcel> start = entry.messages.pop();
  // It was good before. Decoded anew: to keep that for all that wait would take more memory than
  // their messages do.
  const auto header = wire::decode_call_header(start->header());
  Ref<ServerCall> call = make_call(start, *header, entry.deadline);
  if (!call) {
    entry.messages.push(std::move(start));  // let go of without the lock
    return nullptr;
  }
  if (header->has(flag::kPayload)) (void)call->enqueue(std::move(start));
  while (!entry.messages.empty()) {
    Ref<Parcel> message = entry.messages.pop();
    if (message->ok())
      (void)call->enqueue(std::move(message));
    else
      refusal = message->status();
  }
  if (entry.ended) call->end_input();
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
    CallQueue::Entry entry;
    Ref<ServerCall> call;
    Status refusal;
    {
      const MutexLock lock(waiting_mutex_);
      if (unbegun_.load(std::memory_order_seq_cst) >= kMostUnbegun || !waiting_.pop(entry)) return;
      call = make_waiting(entry, refusal);
      waiting_calls_.store(waiting_.size(), std::memory_order_release);
      if (call && refusal.ok())
        unbegun_.fetch_add(1, std::memory_order_relaxed);
      else if (call)
        call->begun_ = true;
    }
    if (!call)
      answer(entry.messages.front().stream(), Code::kUnavailable, kClosed);
    else if (refusal.ok())
      server_->queue(*this, std::move(call));
    else
      call->finish(refusal.code(), refusal.details());
  }
}

// The calls that wait. A link that is lost drops the answers.
void ServerPort::refuse_waiting(const Status& why) {
  for (;;) {
    CallQueue::Entry entry;
    {
      const MutexLock lock(waiting_mutex_);
      if (!waiting_.pop(entry)) return;
      waiting_calls_.store(waiting_.size(), std::memory_order_relaxed);
    }
    link_.surely(
        [&] { answer(entry.messages.front().stream(), Code::kUnavailable, why.details()); });
  }
}

void ServerPort::on_closing(const Status& why) {
  refuse_waiting(why);
  CallPort::on_closing(why);
}

void ServerPort::end_all(const Status& why) {
  refuse_waiting(why);
  CallPort::end_all(why);
  server_->tell_peers_changed();
}

void ServerPort::on_gone() { server_->forget(*this); }

}  // namespace tw
