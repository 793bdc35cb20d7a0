// SPDX-License-Identifier: Apache-2.0
#include "tagged/port.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/shortage.h"
#include "base/text.h"
#include "link/staging.h"
#include "wire/bytes.h"

namespace tw {
namespace {

// What a message costs of the credit beyond its payload. A waiting one takes three times what a
// tiny one takes on the wire, for its parcel and the tag that it may be alone in: so there are few.
constexpr size_t kOverhead = 1280;

size_t cost_of(size_t payload_bytes) { return payload_bytes + kOverhead; }
// For a SendWindow, which adds the overhead of any message.
size_t spent_by(size_t payload_bytes) { return payload_bytes + kOverhead - kMessageOverhead; }

// A message has come to memory of a receive, which may have been withdrawn since.
void move_out(Parcel& message, PostedBuffer& from) {
  const MutexLock lock(from.stores());
  if (!from.withdrawn()) return;
  if (auto [kept, hold] = from.take_kept(); kept)
    message.place(0, kept, std::move(hold));
  else
    message.refuse({Code::kResourceExhausted, "the memory that it was wanted in was withdrawn"});
}

Status late() { return {Code::kDeadlineExceeded, "Deadline Exceeded"}; }

}  // namespace

// ---- one receive ----

TaggedReceive::TaggedReceive(Ref<TaggedPort> port, uint64_t stream, Ref<PostedBuffer> into,
                             Notice told)
    : port_(std::move(port)), stream_(stream), into_(std::move(into)), told_(std::move(told)) {}

// The port's lock is held since the receive was taken off its tag: whoever does not find it there
// finds it ended.
void TaggedReceive::settle(Ref<Parcel>& parcel) noexcept {
  const size_t bytes = parcel->payload_bytes();
  if (!parcel->ok())
    set_status([&] { return parcel->status(); }, Code::kResourceExhausted);
  else if (into_ && bytes > into_->size())
    set_status(
        [&] {
          return Status(Code::kOutOfRange,
                        text({"a message of ", bytes, " bytes came for memory of ", into_->size(),
                              " bytes"}));
        },
        Code::kOutOfRange);
  if (status_.ok()) parcel_ = std::move(parcel);
  ended_.store(true, std::memory_order_release);
}

void TaggedReceive::settle(const Status& why) noexcept {
  set_status([&] { return why; }, why.code());
  ended_.store(true, std::memory_order_release);
}

// Without memory for its sentence it has none.
template <class Make>
void TaggedReceive::set_status(Make&& make, Code code) noexcept {
  if (!has_memory_for([&] { status_ = make(); })) status_ = {code, {}};
}

// After settle(), without the lock.
void TaggedReceive::finish() {
  event_.notify();
  told_.tell();
}

bool TaggedReceive::take(InMessage& message) {
  Ref<Parcel> parcel;
  {
    const MutexLock lock(port_->mutex_);
    if (!parcel_) return false;
    message.segments.reserve(std::max<size_t>(1, parcel_->segments()));
    parcel = std::move(parcel_);
  }
  const size_t bytes = parcel->payload_bytes();
  Parcel::open(std::move(parcel), message);
  if (into_) {
    std::byte* to = into_->data();
    for (InSegment& segment : message.segments) {
      // What came straight here needs no copy.
      if (segment.size != 0 && segment.data != to)
        port_->link().runtime().copier().copy(to, segment.data, segment.size);
      to += segment.size;
    }
    message.segments.clear();
    message.segments.push_back({into_->data(), bytes, into_});
  }
  return true;
}

// ---- the credit of all tags ----

bool TaggedWindow::fits() const {
  return credit_ + std::max(largest_, announced_.empty() ? 0 : *announced_.rbegin()) > 0;
}

bool TaggedWindow::announce(size_t cost) {
  const auto own = static_cast<int64_t>(cost);
  announced_.insert(own);
  announced_sum_ += own;
  credit_ -= own;
  return fits();
}

void TaggedWindow::end_announced(int64_t cost) {
  announced_.erase(announced_.find(cost));
  announced_sum_ -= cost;
}

void TaggedWindow::complete(size_t cost) {
  const auto own = static_cast<int64_t>(cost);
  end_announced(own);
  largest_ = std::max(largest_, own);
}

void TaggedWindow::give_up(size_t cost) {
  const auto own = static_cast<int64_t>(cost);
  end_announced(own);
  credit_ += own;
}

bool TaggedWindow::arrive(size_t cost) {
  credit_ -= static_cast<int64_t>(cost);
  largest_ = std::max(largest_, static_cast<int64_t>(cost));
  return fits();
}

uint64_t TaggedWindow::consume(size_t cost) {
  due_ += static_cast<int64_t>(cost);
  if (due_ < window_ / 4) return 0;
  const int64_t grant = std::exchange(due_, 0);
  credit_ += grant;
  if (credit_ + announced_sum_ == window_) largest_ = 0;
  return static_cast<uint64_t>(grant);
}

// ---- those of one tag ----

void TaggedPort::Tag::push(Ref<TaggedReceive> receive) {
  TaggedReceive* const added = receive.get();
  (last ? last->next_ : first) = std::move(receive);
  last = added;
}

Ref<TaggedReceive> TaggedPort::Tag::pop() {
  Ref<TaggedReceive> receive = std::move(first);
  if (receive) first = std::move(receive->next_);
  if (!first) last = nullptr;
  return receive;
}

// Null: it is not among them.
Ref<TaggedReceive> TaggedPort::Tag::remove(TaggedReceive& receive) {
  TaggedReceive* before = nullptr;
  for (TaggedReceive* at = first.get(); at; before = at, at = at->next_.get()) {
    if (at != &receive) continue;
    Ref<TaggedReceive>& place = before ? before->next_ : first;
    Ref<TaggedReceive> removed = std::move(place);
    place = std::move(removed->next_);
    if (last == at) last = before;
    return removed;
  }
  return nullptr;
}

// ---- sending ----

TaggedPort::TaggedPort(Link& link)
    : link_(link),
      supported_((link.peer().features & wire::kTagged) != 0),
      send_window_(link.peer().stream_window),
      receive_window_(link.runtime().settings().stream_window_bytes) {}

TaggedPort::~TaggedPort() = default;

Status TaggedPort::usable() const {
  if (over()) return status_of_loss(link_.death());
  if (supported_) return {};
  return {Code::kUnimplemented,
          "the peer at " + link_.peer().address + " runs a version without tagged messages"};
}

// False: there is no credit. Where nobody will give any, whoever waits goes on nevertheless.
bool TaggedPort::spend(size_t payload_bytes) {
  const MutexLock lock(mutex_);
  if (!send_window_.open() && !over()) return false;
  send_window_.spend(spent_by(payload_bytes));
  return true;
}

Result<std::optional<TaggedSend>> TaggedPort::begin(uint64_t tag, std::span<OutSegment> segments,
                                                    const Wait& wait) {
  auto begun = submit(tag, segments, wait);
  // The caller may wait for something else first, such as a message of another link.
  if (begun && *begun && (*begun)->outgoing_) link_.after_flush(false, false);
  return begun;
}

Result<std::optional<TaggedSend>> TaggedPort::submit(uint64_t tag, std::span<OutSegment> segments,
                                                     const Wait& wait) {
  if (tag > kMaxTag)
    return Status{Code::kInvalidArgument, text({"a tag is at most ", kMaxTag, ", not ", tag})};
  TaggedSend begun;
  for (const OutSegment& segment : segments) begun.bytes_ += segment.size;
  begun.end_ = make_ref<TaggedSend::SendEnd>();
  while (!spend(begun.bytes_)) {
    link_.flush();
    const Ended ended = wait_through(wait, [this](Nanos until) {
      return link_.wait(credit_, [this] { return sendable(); }, until);
    });
    if (ended == Ended::kTimeout) return late();
    if (ended == Ended::kInterrupted) return std::optional<TaggedSend>();
  }
  const auto given_up = [&](Status why) {
    refund(begun.bytes_);
    return why;
  };
  if (Status status = usable(); !status.ok()) return given_up(std::move(status));
  if (const size_t unread = link_.backlog(); unread > link_.runtime().settings().unread_bytes)
    return given_up({Code::kResourceExhausted, text({"the peer has yet to take ", unread,
                                                     " bytes: let it take some first"})});
  Result<Ref<Outgoing>> sent = Ref<Outgoing>{};
  try {
    stage(link_, segments);
    sent = link_.send(wire::kTaggedStreams | tag, {}, segments, &begun.end_->event, begun.end_);
  } catch (const std::bad_alloc&) {
    refund(begun.bytes_);
    throw;
  }
  if (!sent) return given_up(sent.status());
  begun.outgoing_ = std::move(*sent);
  return std::optional(std::move(begun));
}

Ended TaggedPort::wait(TaggedSend& send, const Wait& wait) {
  return wait_through(wait, [&](Nanos until) {
    return link_.wait(send.end_->event, [&] { return send.ended(); }, until);
  });
}

bool TaggedPort::withdraw(TaggedSend& send) {
  if (send.ended() || !link_.withdraw(send.outgoing_)) return false;
  refund(send.bytes_);
  return true;
}

Result<bool> TaggedPort::send(uint64_t tag, std::span<OutSegment> segments, const Wait& wait) {
  auto begun = submit(tag, segments, wait);
  if (!begun) return begun.status();
  if (!*begun) return false;
  TaggedSend& sent = **begun;
  if (!sent.outgoing_) return true;
  const Ended ended = this->wait(sent, wait);
  const bool back = withdraw(sent);
  if (ended == Ended::kInterrupted) return false;
  if (back) return late();
  // A lost link frees what it has not sent, too.
  if (link_.lost()) return status_of_loss(link_.death());
  return true;
}

// The peer will not see a message, and so grants nothing for it.
void TaggedPort::refund(size_t payload_bytes) {
  send_window_.refund(spent_by(payload_bytes));
  credit_.notify();
  link_.nudge(credit_);
}

Status TaggedPort::on_credit(uint64_t, uint64_t bytes) {
  if (!send_window_.grant(bytes))
    return wire::protocol_error({"CREDIT frame: tagged messages: more than was ever sent"});
  credit_.notify();
  return {};
}

// ---- receiving ----

Result<Ref<TaggedReceive>> TaggedPort::receive(uint64_t tag, Ref<PostedBuffer> into, Notice told) {
  if (tag > kMaxTag)
    return Status{Code::kInvalidArgument, text({"a tag is at most ", kMaxTag, ", not ", tag})};
  if (!supported_) return usable();
  const uint64_t stream = wire::kTaggedStreams | tag;
  auto receive = Ref<TaggedReceive>::adopt(
      new TaggedReceive(Ref<TaggedPort>::share(this), stream, std::move(into), std::move(told)));
  Ref<Parcel> there;  // dropped without the lock if it cannot be taken
  std::optional<size_t> came;
  {
    const MutexLock lock(mutex_);
    const auto it = tags_.find(stream);
    if (it != tags_.end() && !it->second.messages.empty()) {
      there = it->second.messages.pop();
      --waiting_;
      if (it->second.empty()) tags_.erase(it);
      came = there->payload_bytes();
      receive->settle(there);
    } else if (!closed_) {
      tags_[stream].push(receive);
      return receive;
    } else {
      receive->settle(*closed_);
    }
  }
  receive->finish();
  there = nullptr;
  if (came) received(*came);
  return receive;
}

Ended TaggedPort::wait(TaggedReceive& receive, const Wait& wait) {
  return wait_through(wait, [&](Nanos until) {
    return link_.wait(receive.event_, [&] { return receive.ended(); }, until);
  });
}

// From the return on nobody stores in the memory of a receive. What has begun to come there goes on
// in the pool's, if it is to be kept and there is some.
void TaggedPort::give_back(PostedBuffer& into, bool keep) noexcept {
  Hold hold;
  std::byte* kept = nullptr;
  const MutexLock lock(into.stores());
  if (into.withdrawn()) return;
  if (const std::optional<size_t> stored = into.stored(); stored && keep)
    (void)has_memory_for([&] {
      auto buffer = link_.runtime().pool().get(into.size());
      if (!buffer) return;
      link_.runtime().copier().copy((*buffer)->data(), into.data(), *stored);
      kept = (*buffer)->data();
      hold = std::move(*buffer);
    });
  into.withdraw(kept, std::move(hold));
}

bool TaggedPort::cancel(TaggedReceive& receive) {
  if (receive.ended()) return false;
  // First: whoever finds it ended has its memory back.
  if (receive.into_) give_back(*receive.into_, true);
  const Status why(Code::kCancelled, "the receive was cancelled");
  Ref<TaggedReceive> removed;
  {
    const MutexLock lock(mutex_);
    const auto it = tags_.find(receive.stream_);
    if (it == tags_.end()) return false;
    removed = it->second.remove(receive);
    if (it->second.empty()) tags_.erase(it);
    if (!removed) return false;
    removed->settle(why);
  }
  removed->finish();
  link_.nudge(removed->event_);
  return true;
}

size_t TaggedPort::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_;
}

bool TaggedPort::peek(uint64_t tag, std::span<std::byte> into) const {
  const MutexLock lock(mutex_);
  const auto it = tags_.find(wire::kTaggedStreams | tag);
  if (it == tags_.end() || it->second.messages.empty()) return false;
  const auto first = it->second.messages.front().first();
  if (first.size() != into.size()) return false;
  std::ranges::copy(first, into.begin());
  return true;
}

// A message has been asked for. Whoever asks has a place for it: its peer may send as much again.
void TaggedPort::received(size_t payload_bytes) {
  uint64_t grant;
  {
    const MutexLock lock(mutex_);
    grant = receive_window_.consume(cost_of(payload_bytes));
  }
  if (grant != 0) link_.surely([&] { link_.send_credit(wire::kTaggedStreams, grant); });
}

Status TaggedPort::on_message(Ref<Parcel> message) {
  if (!message->header().empty())
    return wire::protocol_error({"MESSAGE frame: header_length is ", message->header().size(),
                                 ", but tagged messages have no header"});
  const size_t bytes = message->payload_bytes();
  Ref<TaggedReceive> receive;
  const Ref<PostedBuffer> posted = Ref<PostedBuffer>::share(message->posted());
  {
    const MutexLock lock(mutex_);
    if (dropping_) return {};
    if (message->cost().credit != 0)
      receive_window_.complete(message->cost().credit);
    else if (!receive_window_.arrive(cost_of(bytes)))
      return wire::protocol_error({"a tagged message without credit"});
    if (posted) move_out(*message, *posted);
    if (const auto it = tags_.find(message->stream()); it != tags_.end()) {
      receive = it->second.pop();
      if (it->second.empty()) tags_.erase(it);
    }
    if (!receive) {
      tags_[message->stream()].messages.push(std::move(message));
      ++waiting_;
      return {};
    }
    receive->settle(message);
  }
  receive->finish();
  message = nullptr;
  received(bytes);
  return {};
}

// Before the bytes of a message that has begun are taken in.
Result<Receiver::Cost> TaggedPort::on_wait(uint64_t, std::span<const std::byte> header,
                                           uint64_t payload_bytes, const Receiver::Cost&) {
  if (!header.empty())
    return wire::protocol_error({"MESSAGE frame: header_length is ", header.size(),
                                 ", but tagged messages have no header"});
  const MutexLock lock(mutex_);
  if (!receive_window_.announce(cost_of(payload_bytes)))
    return wire::protocol_error({"a tagged message without credit"});
  return Receiver::Cost{cost_of(payload_bytes), 0};
}

void TaggedPort::on_given_up(const Parcel& message) {
  const MutexLock lock(mutex_);
  receive_window_.give_up(message.cost().credit);
}

// The message goes to the first receive, unless that is cancelled meanwhile.
Ref<PostedBuffer> TaggedPort::on_land(const Parcel& message, size_t segment) {
  if (message.segments() != 1) return nullptr;
  const MutexLock lock(mutex_);
  const auto it = tags_.find(message.stream());
  if (it == tags_.end() || !it->second.first) return nullptr;
  const Ref<PostedBuffer>& into = it->second.first->into_;
  return into && into->owner() && into->size() >= message.size_of(segment) && into->begin()
             ? into
             : nullptr;
}

// ---- ending ----

Status TaggedPort::status_of_loss(const Status& why) {
  return why.code() == Code::kCancelled ? why : Status{Code::kUnavailable, why.details()};
}

void TaggedPort::on_peer_closed() {
  peer_closed_.store(true, std::memory_order_release);
  end_all(status_of_loss(link_.death()), Left::kAll);
}

// Takes no memory: whoever waits for a receive is surely told.
void TaggedPort::end_all(const Status& why, Left left) noexcept {
  Tag ended;
  ParcelQueue dropped;  // gives leases back, without the lock
  {
    const MutexLock lock(mutex_);
    if (!closed_) {
      closed_.emplace();
      if (!has_memory_for([&] {
            mutex_.held();
            *closed_ = why;
          }))
        *closed_ = {why.code(), {}};
    }
    dropping_ = dropping_ || left == Left::kNothing;
    for (auto it = tags_.begin(); it != tags_.end();) {
      Tag& tag = it->second;
      while (Ref<TaggedReceive> receive = tag.pop()) {
        if (receive->into_) give_back(*receive->into_, !dropping_ && left == Left::kAll);
        receive->settle(why);
        ended.push(std::move(receive));
      }
      while (dropping_ && !tag.messages.empty()) {
        dropped.push(tag.messages.pop());
        --waiting_;
      }
      it = tag.empty() ? tags_.erase(it) : std::next(it);
    }
  }
  while (const Ref<TaggedReceive> receive = ended.pop()) {
    receive->finish();
    link_.nudge(receive->event_);
  }
  credit_.notify();
  link_.nudge(credit_);
}

}  // namespace tw
