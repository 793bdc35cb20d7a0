// SPDX-License-Identifier: Apache-2.0
#include "call/call.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "base/shortage.h"
#include "call/call_queue.h"
#include "wire/bytes.h"

namespace tw {
namespace {

// The headers of one call in one direction never come to as much: two blocks of metadata, details,
// a method, and the overhead of the few messages without payload.
constexpr uint64_t kMaxWaitingHeaders = 256 << 10;

// This many messages, each so soon after the one before, make a burst.
constexpr uint32_t kBurstLength = 4;
constexpr Nanos kBurstGap = 30 * kMicrosecond;

// Of what its owner may write again, and has not been sent.
class Copies final : public RefCounted {
 public:
  static Result<Hold> make(std::span<OutSegment> segments, Link& link) {
    auto copies = make_ref<Copies>();
    Runtime& runtime = link.runtime();
    for (OutSegment& segment : segments) {
      if (segment.block || segment.hold || !segment.bulk.value_or(false)) continue;
      auto buffer = runtime.pool().get(segment.size);
      if (!buffer) return buffer.status();
      runtime.copier().copy((*buffer)->data(), segment.data, segment.size);
      segment.data = (*buffer)->data();
      copies->buffers_.push_back(std::move(*buffer));
    }
    runtime.memory_used();
    return Hold(std::move(copies));
  }

 private:
  std::vector<Ref<PoolBuffer>> buffers_;
};

Status closed_by_user() { return {Code::kCancelled, "the channel was closed"}; }

}  // namespace

Call::Call(Ref<CallPort> port, uint64_t stream, Nanos deadline)
    : port_(std::move(port)),
      link_(port_->link()),
      stream_(stream),
      deadline_(deadline),
      send_window_(link_.peer().stream_window),
      receive_window_(link_.runtime().settings().stream_window_bytes) {}

// ---- receiving ----

Waited Call::wait_message(Nanos deadline) {
  return link_.wait(
      event_,
      [this] { return waiting_messages_.load(std::memory_order_acquire) != 0 || input_over(); },
      deadline);
}

bool Call::take(InMessage& message) {
  Ref<Parcel> next;
  uint64_t grant;
  bool emptied;
  {
    const MutexLock lock(mutex_);
    if (inbox_.empty()) return false;
    message.segments.reserve(inbox_.front().segments());
    next = inbox_.pop();
    emptied = inbox_.empty();
    waiting_messages_.fetch_sub(1, std::memory_order_release);
    grant = receive_window_.consume(next->payload_bytes());
  }
  // Without the lock: what `message` held may give leases back.
  Parcel::open(std::move(next), message);
  link_.surely([&] {
    on_take();
    if (emptied) on_emptied();
    // After the last message nobody needs credit.
    if (grant != 0 && !input_over()) link_.send_credit(stream_, grant);
  });
  return true;
}

bool Call::enqueue(Ref<Parcel> message) {
  bool watched;
  {
    const MutexLock lock(mutex_);
    if (discarding_) return true;
    if (!receive_window_.arrive(message->payload_bytes())) return false;
    inbox_.push(std::move(message));
    waiting_messages_.fetch_add(1, std::memory_order_release);
    watched = !notes_.empty();
  }
  tell(watched);
  return true;
}

void Call::discard_input() {
  ParcelQueue dropped;  // gives leases back, without the lock
  const MutexLock lock(mutex_);
  discarding_ = true;
  dropped.swap(inbox_);
  waiting_messages_.store(0, std::memory_order_release);
}

int64_t Call::peer_credit() {
  const MutexLock lock(mutex_);
  return receive_window_.credit();
}

Waited Call::wait_ended(Nanos deadline) {
  return link_.wait(event_, [this] { return ended(); }, deadline);
}

// ---- sending ----

Waited Call::wait_sendable(Nanos deadline) {
  if (sendable()) return Waited::kDone;
  link_.flush();
  return link_.wait(event_, [this] { return sendable(); }, deadline);
}

Waited Call::wait_sent(const Outgoing& outgoing, Nanos deadline) {
  return link_.wait(event_, [&] { return !outgoing.borrowed() || over(); }, deadline);
}

void Call::pace(const Outgoing& outgoing) {
  link_.at_pace(
      [&](Nanos until) { return link_.wait(event_, [&] { return !outgoing.borrowed(); }, until); });
}

void Call::withdraw_kept() {
  if (kept_.load()) link_.surely([this] { link_.withdraw_stream(stream_); });
}

Status Call::leave(const Ref<Outgoing>& outgoing, std::span<OutSegment> segments,
                   const Keeper& keeper) {
  if (!outgoing->borrowed()) return {};
  Hold memory;
  Status status;
  switch (keeper.how) {
    case Keeper::How::kWait:
      while (
          link_.wait(event_, [&] { return !outgoing->borrowed(); }, deadline_) == Waited::kSignal) {
      }
      (void)link_.withdraw(outgoing);
      return {};
    case Keeper::How::kHold:
      memory = keeper.hold(keeper.context);
      break;
    case Keeper::How::kCopy:
      if (auto copies = Copies::make(segments, link_)) {
        memory = std::move(*copies);
        break;
      } else {
        status = copies.status();
      }
      return link_.withdraw(outgoing) ? status : Status{};
  }
  link_.keep(outgoing, segments, std::move(memory), deadline_);
  kept_.store(true);
  return {};
}

bool Call::withdraw(const Ref<Outgoing>& outgoing) {
  if (!link_.withdraw(outgoing)) return false;
  send_window_.refund(outgoing->payload_bytes());
  tell();
  link_.nudge(event_);
  return true;
}

Status Call::on_credit(uint64_t bytes) {
  if (!send_window_.grant(bytes))
    return {Code::kInternal, "protocol error: credit beyond anything that was sent"};
  tell();
  return {};
}

bool Call::in_burst() {
  const Nanos at = now();
  const bool quick = at - std::exchange(last_send_, at) < kBurstGap;
  quick_sends_ = quick ? quick_sends_ + 1 : 0;
  return quick_sends_ >= kBurstLength;
}

Result<Ref<Outgoing>> Call::send(const wire::CallHeader& header, std::span<OutSegment> segments,
                                 bool driving, bool defer) {
  std::byte small[512];
  std::unique_ptr<std::byte[]> large;
  const size_t size = wire::call_header_size(header);
  std::byte* out = small;
  if (size > sizeof small) {
    large.reset(new std::byte[size]);
    out = large.get();
  }
  wire::encode_call_header(out, header);
  bool borrows = false;
  size_t bytes = 0;
  for (const OutSegment& segment : segments) {
    borrows = borrows || (!segment.block && !segment.hold);
    bytes += segment.size;
  }
  auto sent = link_.send(stream_, {out, size}, segments, &event_,
                         borrows ? Hold(Ref<Call>::share(this)) : Hold{}, driving, defer);
  // What was refused costs nothing. The peer may grant it before it is paid.
  if (sent && header.has(wire::call_flag::kPayload)) send_window_.spend(bytes);
  return sent;
}

// ---- what happens ----

bool Call::happened(Happening what) const {
  switch (what) {
    case Happening::kEnded:
    case Happening::kCut:
      return ended();
    case Happening::kMessage:
      return has_message() || input_over();
    case Happening::kRoom:
      return sendable();
    case Happening::kInitial:
      return initial_known() || over();
  }
  return true;
}

void Call::notify(Happening what, Ref<EventQueue> queue, uint64_t token) {
  std::forward_list<Note> note;
  note.push_front({Notice(std::move(queue), token), what});
  {
    const MutexLock lock(mutex_);
    notes_.splice_after(notes_.before_begin(), note);
    watched_.store(true, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (happened(what)) tell_notes();
}

void Call::tell_notes() {
  std::forward_list<Note> due;
  bool finished;
  {
    const MutexLock lock(mutex_);
    for (auto before = notes_.before_begin(); std::next(before) != notes_.end();)
      if (happened(std::next(before)->what))
        due.splice_after(due.before_begin(), notes_, before);
      else
        ++before;
    watched_.store(!notes_.empty(), std::memory_order_relaxed);
    finished = finished_;
  }
  for (Note& note : due)
    if (note.what != Happening::kCut || !finished) note.notice.tell();
}

void Call::finish_ending(bool finished) {
  bool watched;
  {
    const MutexLock lock(mutex_);
    finished_ = finished;
    ended_.store(true);
    watched = !notes_.empty();
  }
  port_->remove(stream_);
  tell(watched);
}

// ---- the port ----

size_t CallPort::calls() const {
  const MutexLock lock(calls_mutex_);
  return calls_.size();
}

LinkStats CallPort::stats() {
  LinkStats stats = link_.stats();
  stats.calls = calls();
  stats.dropped_calls = dropped_calls_.load(std::memory_order_relaxed);
  stats.refused_calls = refused_calls_.load(std::memory_order_relaxed);
  stats.waiting_calls = waiting_calls();
  return stats;
}

bool CallPort::add(Call& call) {
  const MutexLock lock(calls_mutex_);
  if (closed_) return false;
  calls_.add(Ref<Call>::share(&call));
  return true;
}

void CallPort::remove(uint64_t stream) {
  Ref<Call> last;
  bool idle;
  {
    const MutexLock lock(calls_mutex_);
    last = calls_.take(stream);
    if (!last) return;
    idle = abandoned_ && calls_.empty();
  }
  if (idle) link_.surely([this] { link_.look_soon(); });
}

void CallPort::close() noexcept {
  link_.surely([this] { link_.close(closed_by_user()); });
}

void CallPort::abandon() noexcept {
  {
    const MutexLock lock(calls_mutex_);
    abandoned_ = true;
    if (!calls_.empty()) return;
  }
  close();
}

void CallPort::on_timer() {
  {
    const MutexLock lock(calls_mutex_);
    if (!abandoned_ || !calls_.empty()) return;
  }
  link_.close(closed_by_user());
}

void CallPort::notify_gone(Ref<EventQueue> queue, uint64_t token) {
  Notices notice(std::move(queue), token);
  {
    const MutexLock lock(calls_mutex_);
    if (!closed_) {
      gone_.add(std::move(notice));
      return;
    }
  }
  notice.tell();
}

Status CallPort::on_message(Ref<Parcel> message) {
  const uint64_t stream = message->stream();
  if ((stream & wire::kAcceptorStreams) != own_streams_) return on_request(std::move(message));
  const Ref<Call> call = find(stream);
  // Answers may cross the cancellation of their call.
  return call ? call->on_message(std::move(message)) : Status{};
}

Status CallPort::on_request(Ref<Parcel> message) {
  const auto header = header_of(*message);
  if (!header) return header.status();
  if (header->has(wire::call_flag::kStart))
    answer(message->stream(), Code::kUnimplemented, "this process serves no calls on this link");
  return {};
}

void CallPort::answer(uint64_t stream, Code code, std::string_view details) {
  wire::CallHeader header;
  header.flags = wire::call_flag::kEnd;
  header.code = code;
  header.details = details;
  std::vector<std::byte> bytes(wire::call_header_size(header));
  wire::encode_call_header(bytes.data(), header);
  (void)link_.send(stream, bytes, {}, nullptr, {});
}

Ref<Call> CallPort::find(uint64_t stream) const {
  const MutexLock lock(calls_mutex_);
  return Ref<Call>::share(calls_.find(stream));
}

// The same verdict that the call would give once the message is handed up, but before its bytes are
// taken in. A stream without a call is one that has ended here or whose start waits, too.
Result<Receiver::Cost> CallPort::on_wait(uint64_t stream, std::span<const std::byte> header,
                                         uint64_t payload_bytes, const Receiver::Cost& ahead) {
  const auto flags = wire::decode_call_flags(header);
  if (!flags) return flags.status();
  Receiver::Cost cost;
  if ((*flags & wire::call_flag::kPayload) != 0) {
    const Ref<Call> call = find(stream);
    const int64_t credit =
        call ? call->peer_credit()
             : static_cast<int64_t>(link_.runtime().settings().stream_window_bytes);
    if (credit <= 0 || ahead.credit >= static_cast<uint64_t>(credit))
      return wire::protocol_error({"a message without credit"});
    cost.credit = window_cost(payload_bytes);
    cost.header_bytes = header.size() - wire::kCallFixedSize;
  } else {
    if (payload_bytes != 0)
      return wire::protocol_error({"a message of a call has segments, without PAYLOAD"});
    cost.header_bytes = header.size() + kMessageOverhead;
  }
  if (ahead.header_bytes + cost.header_bytes > kMaxWaitingHeaders)
    return wire::protocol_error({"stream ", stream,
                                 ": the headers of its messages that wait for "
                                 "one before them are longer than ",
                                 kMaxWaitingHeaders, " bytes together"});
  return cost;
}

Ref<PostedBuffer> CallPort::on_land(const Parcel& message, size_t segment) {
  const Ref<Call> call = find(message.stream());
  return call ? call->place_for(segment, message.size_of(segment)) : nullptr;
}

Status CallPort::on_credit(uint64_t stream, uint64_t bytes) {
  // Credit may cross the end of its call.
  Ref<Call> call = find(stream);
  return call ? call->on_credit(bytes) : Status{};
}

void CallPort::on_closing(const Status& why) {
  std::vector<Ref<Call>> calls;
  {
    const MutexLock lock(calls_mutex_);
    calls_.each([&](Call& call) { calls.push_back(Ref<Call>::share(&call)); });
  }
  for (auto& call : calls) call->on_closing(why);
}

void CallPort::end_all(const Status& why) {
  StreamTable<Call> calls;
  Notices gone;
  {
    const MutexLock lock(calls_mutex_);
    closed_ = true;
    calls.swap(calls_);
    gone.swap(gone_);
  }
  gone.tell();
  calls.each([&](Call& call) {
    try {
      call.on_lost(why);
    } catch (const std::bad_alloc&) {
      const Shortage shortage;
      call.on_lost({why.code(), {}});
    }
  });
}

}  // namespace tw
