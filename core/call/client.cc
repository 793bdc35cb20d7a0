// SPDX-License-Identifier: Apache-2.0
#include "call/client.h"

#include "base/shortage.h"
#include "call/call_queue.h"

namespace tw {

using wire::CallHeader;
namespace flag = wire::call_flag;

ClientCall::ClientCall(Ref<CallPort> port, uint64_t stream, Nanos deadline, bool until_read)
    : Call(std::move(port), stream, deadline), until_read_(until_read) {}

Result<Ref<Outgoing>> ClientCall::begin(std::string_view method,
                                        std::span<const wire::MetadataEntry> metadata,
                                        std::span<OutSegment> segments, bool payload, bool end,
                                        bool driving) {
  CallHeader header;
  header.flags = flag::kStart;
  if (payload) header.flags |= flag::kPayload;
  if (end) header.flags |= flag::kEnd;
  if (!metadata.empty()) header.flags |= flag::kInitial;
  header.method = method;
  header.initial = metadata;
  if (deadline_ != kForever) {
    const Nanos left = deadline_ - now();
    header.timeout_ns = left > 0 ? static_cast<uint64_t>(left) : 1;
  }
  if (Status status = wire::check_method(method); !status.ok()) return status;
  if (!metadata.empty())
    if (Status status = wire::check_metadata(metadata); !status.ok()) return status;
  auto sent = send(header, segments, driving);
  // The server ignores what cancels a call that it does not know yet.
  if (sent && cancelled_.load()) send_cancel(Code::kCancelled);
  return sent;
}

Result<Ref<Outgoing>> ClientCall::send_message(std::span<OutSegment> segments, bool end,
                                               bool defer) {
  CallHeader header;
  header.flags = static_cast<uint8_t>(flag::kPayload | (end ? flag::kEnd : 0));
  return send(header, segments, false, defer && !end);
}

Status ClientCall::end_send() {
  if (over()) return {};
  CallHeader header;
  header.flags = flag::kEnd;
  auto sent = send(header, {}, false);
  return sent ? Status{} : sent.status();
}

Waited ClientCall::wait_initial(Nanos deadline) {
  return link_.wait(
      event_, [this] { return initial_known_.load(std::memory_order_acquire) || over(); },
      deadline);
}

ReceivedMetadata ClientCall::initial() { return initial_known() ? initial_ : ReceivedMetadata{}; }

bool ClientCall::cancel(Code code, std::string details) {
  if (!begin_ending()) return false;
  cancelled_.store(true);
  if (!peer_done()) link_.surely([&] { send_cancel(code); });
  if (until_read_) discard_input();
  Outcome outcome;
  outcome.code = code;
  outcome.details = std::move(details);
  end(std::move(outcome));
  link_.nudge(event_);
  return true;
}

void ClientCall::send_cancel(Code code) {
  CallHeader header;
  header.flags = flag::kCancel;
  header.code = code == Code::kOk ? Code::kCancelled : code;
  // A link that cannot carry it any more tells the server in its own way.
  (void)send(header, {}, false);
}

void ClientCall::conclude(Outcome outcome) {
  if (!until_read_) {
    if (begin_ending()) end(std::move(outcome));
    return;
  }
  if (concluded_.exchange(true, std::memory_order_acq_rel)) return;
  conclusion_ = std::move(outcome);
  set_peer_done();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // with that of on_emptied()
  withdraw_kept();
  end_input();
  if (empty())
    end_as_concluded();
  else
    tell();
}

// Whoever empties the call looks for its conclusion after that, and who concludes it looks for
// messages after that: one of them sees both. Each writes one variable and then reads the other's,
// which only fences on both sides keep in this order.
void ClientCall::on_emptied() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // A last message may have come since, which is still to be read.
  if (!peer_done() || !empty()) return;
  end_as_concluded();
  link_.nudge(event_);  // another thread may drive the link, and wait for the end
}

void ClientCall::end_as_concluded() {
  if (begin_ending()) end(std::move(conclusion_));
}

// The caller has won begin_ending().
void ClientCall::end(Outcome outcome) {
  // After begin_ending(); in watch_deadline() it is the other way round, so that one of the two
  // sees the other.
  if (timed_.load(std::memory_order_seq_cst)) {
    const MutexLock lock(timer_mutex_);
    if (auto poller = link_.runtime().background(); timer_ && poller)
      (*poller)->cancel_timer(*timer_);
    timer_.reset();
  }
  outcome_ = std::move(outcome);
  finish_ending();
  withdraw_kept();
}

Status ClientCall::watch_deadline() {
  if (deadline_ == kForever) return {};
  auto poller = link_.runtime().background();
  if (!poller) return poller.status();
  const MutexLock lock(timer_mutex_);
  timed_.store(true, std::memory_order_seq_cst);
  if (ending()) return {};
  timer_ = (*poller)->add_timer(deadline_, Ref<Timed>::share(this));
  return {};
}

void ClientCall::on_timer() {
  {
    const MutexLock lock(timer_mutex_);
    timer_.reset();
  }
  std::string details;
  (void)has_memory_for([&] { details = kDeadlineDetails; });  // it holds without a sentence, too
  cancel(Code::kDeadlineExceeded, std::move(details));
}

namespace {

// How a call ends when its link does.
Code code_of_loss(const Status& why) {
  return why.code() == Code::kCancelled ? Code::kCancelled : Code::kUnavailable;
}

}  // namespace

void ClientCall::on_closing(const Status& why) {
  if (why.code() == Code::kCancelled || !peer_done()) cancel(code_of_loss(why), why.details());
}

void ClientCall::on_lost(const Status& why) {
  // Of a call that its peer is done with nothing was lost.
  if (!peer_done() && !ending()) conclude({code_of_loss(why), why.details(), {}});
}

Ref<PostedBuffer> ClientCall::place_for(size_t segment, size_t size) {
  if (segment >= places_.size() || !places_[segment]) return nullptr;
  return places_[segment]->size() == size ? places_[segment] : nullptr;
}

Status ClientCall::on_message(Ref<Parcel> message) {
  const auto header = header_of(*message);
  if (!header) return header.status();
  if (header->has(flag::kStart | flag::kCancel))
    return {Code::kInternal, "protocol error: a server may not start or cancel a call"};
  if (peer_done()) return {};  // it crosses this end's verdict
  if (const Status why = message->status(); !why.ok()) {
    if (until_read_) {
      send_cancel(why.code());
      conclude({why.code(), why.details(), {}});
    } else {
      cancel(why.code(), why.details());
    }
    return {};
  }
  if (header->has(flag::kInitial)) {
    if (initial_known_.load(std::memory_order_relaxed))
      return {Code::kInternal, "protocol error: initial metadata came twice"};
    initial_ = {Hold(message), header->initial};
    initial_known_.store(true, std::memory_order_release);
    // What follows in the same message tells of it, too.
    if (!header->has(flag::kPayload | flag::kEnd)) tell();
  }
  const bool last = header->has(flag::kEnd);
  Outcome outcome;
  if (last) {
    outcome.code = header->code;
    outcome.details = header->details;
    if (header->has(flag::kTrailing)) outcome.trailing = {Hold(message), header->trailing};
  }
  if (header->has(flag::kPayload) && !enqueue(std::move(message)))
    return {Code::kInternal, "protocol error: a message without credit"};
  if (last) conclude(std::move(outcome));
  return {};
}

// ---- the port ----

Result<Ref<CallPort>> CallPort::create(Runtime& runtime, std::unique_ptr<Transport> transport,
                                       Peer peer, uint64_t max_message, Link::Role role,
                                       const Wanted& wanted) {
  auto poller = runtime.background();
  if (!poller) return poller.status();
  const auto link = make_ref<Link>(runtime, **poller, std::move(transport), std::move(peer),
                                   max_message, role, wanted);
  const auto port = Ref<CallPort>::share(&link->attach<CallPort>());
  if (Status status = link->start(); !status.ok()) return status;
  return port;
}

Result<Ref<ClientCall>> CallPort::new_call(Nanos deadline, bool until_read) {
  const uint64_t number = begun_calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto call = Ref<ClientCall>::adopt(
      new ClientCall(Ref<CallPort>::share(this), own_streams_ | number, deadline, until_read));
  if (!link_.alive() || !add(*call)) {
    Status why = link_.death();
    return Status{Code::kUnavailable, why.ok() ? "the link is closed" : why.details()};
  }
  return call;
}

}  // namespace tw
