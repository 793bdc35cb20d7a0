// SPDX-License-Identifier: Apache-2.0
#include "tagged/port.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "link/staging.h"
#include "wire/bytes.h"

namespace tw {
namespace {

// What a message costs of the credit beyond its payload. A waiting one takes three times what a
// tiny one takes on the wire, for its parcel and the tag that it may be alone in: so there are few.
constexpr size_t kOverhead = 1280;
static_assert(kOverhead >= kMessageOverhead);

size_t cost_of(size_t payload_bytes) { return payload_bytes + kOverhead - kMessageOverhead; }

// What a sender waits on until its memory is free.
class Departure final : public RefCounted {
 public:
  Event event;
};

}  // namespace

// ---- one receive ----

TaggedReceive::TaggedReceive(Ref<TaggedPort> port, uint64_t stream, Ref<PostedBuffer> into,
                             std::optional<EventQueue::Place> place, uint64_t token)
    : port_(std::move(port)),
      stream_(stream),
      into_(std::move(into)),
      place_(std::move(place)),
      token_(token) {}

TaggedReceive::~TaggedReceive() {
  if (!parcel_) return;
  const size_t bytes = parcel_->payload_bytes();
  parcel_ = nullptr;  // gives leases back first
  port_->received(bytes);
}

void TaggedReceive::end(Ref<Parcel> parcel) {
  if (!parcel->ok())
    status_ = parcel->status();
  else if (into_ && parcel->payload_bytes() > into_->size())
    status_ = {Code::kOutOfRange, text({"a message of ", parcel->payload_bytes(),
                                        " bytes came for memory of ", into_->size(), " bytes"})};
  parcel_ = std::move(parcel);
  // By the driver, or before anybody waits.
  finish();
}

void TaggedReceive::end(Status why) {
  status_ = std::move(why);
  finish();
  port_->link().nudge(event_);
}

void TaggedReceive::finish() {
  ended_.store(true, std::memory_order_release);
  event_.notify();
  if (place_) place_->push(token_);
}

bool TaggedReceive::take(InMessage& message) {
  if (!parcel_) return false;
  message.segments.reserve(std::max<size_t>(1, parcel_->segments()));
  const size_t bytes = parcel_->payload_bytes();
  Parcel::open(std::move(parcel_), message);
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
  port_->received(bytes);
  return true;
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
  if (!link_.alive()) return status_of_loss(link_.death());
  if (supported_) return {};
  return {Code::kUnimplemented,
          "the peer at " + link_.peer().address + " runs a version without tagged messages"};
}

Result<bool> TaggedPort::send(uint64_t tag, std::span<OutSegment> segments, const Wait& wait) {
  const auto late = [] { return Status{Code::kDeadlineExceeded, "Deadline Exceeded"}; };
  if (tag > kMaxTag)
    return Status{Code::kInvalidArgument, text({"a tag is at most ", kMaxTag, ", not ", tag})};
  if (!sendable()) {
    link_.flush();
    const Ended ended = wait_through(wait, [this](Nanos until) {
      return link_.wait(credit_, [this] { return sendable(); }, until);
    });
    if (ended == Ended::kTimeout) return late();
    if (ended == Ended::kInterrupted) return false;
  }
  if (Status status = usable(); !status.ok()) return status;
  stage(link_, segments);
  size_t bytes = 0;
  bool borrows = false;
  for (const OutSegment& segment : segments) {
    bytes += segment.size;
    borrows = borrows || (!segment.block && !segment.hold);
  }
  const Ref<Departure> departure = borrows ? make_ref<Departure>() : nullptr;
  {
    std::lock_guard lock(mutex_);
    send_window_.spend(cost_of(bytes));
    sendable_.store(send_window_.open(), std::memory_order_release);
  }
  auto sent = link_.send(wire::kTaggedStreams | tag, {}, segments,
                         departure ? &departure->event : nullptr, departure, false);
  if (!sent) {
    refund(bytes);
    return sent.status();
  }
  const Ref<Outgoing> outgoing = std::move(*sent);
  if (!outgoing) return true;
  const Ended ended = wait_through(wait, [&](Nanos until) {
    return link_.wait(
        departure->event, [&] { return !outgoing->borrowed() || link_.closed(); }, until);
  });
  if (!outgoing->borrowed() || !link_.withdraw(outgoing)) return true;
  refund(bytes);
  if (ended == Ended::kInterrupted) return false;
  if (ended == Ended::kTimeout) return late();
  return status_of_loss(link_.death());
}

// The peer will not see a message, and so grants nothing for it.
void TaggedPort::refund(size_t payload_bytes) {
  {
    std::lock_guard lock(mutex_);
    send_window_.refund(cost_of(payload_bytes));
    sendable_.store(send_window_.open(), std::memory_order_release);
  }
  credit_.notify();
  link_.nudge(credit_);
}

Status TaggedPort::on_credit(uint64_t, uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (!send_window_.grant(bytes))
      return wire::protocol_error({"CREDIT frame: tagged messages: more than was ever sent"});
    sendable_.store(send_window_.open(), std::memory_order_release);
  }
  credit_.notify();
  return {};
}

// ---- receiving ----

Result<Ref<TaggedReceive>> TaggedPort::receive(uint64_t tag, Ref<PostedBuffer> into,
                                               std::optional<EventQueue::Place> place,
                                               uint64_t token) {
  if (tag > kMaxTag)
    return Status{Code::kInvalidArgument, text({"a tag is at most ", kMaxTag, ", not ", tag})};
  if (!supported_) return usable();
  const uint64_t stream = wire::kTaggedStreams | tag;
  auto receive = Ref<TaggedReceive>::adopt(new TaggedReceive(
      Ref<TaggedPort>::share(this), stream, std::move(into), std::move(place), token));
  Ref<Parcel> there;
  Status gone;
  {
    std::lock_guard lock(mutex_);
    const auto it = tags_.find(stream);
    if (it != tags_.end() && !it->second.messages.empty()) {
      there = it->second.messages.pop();
      --waiting_;
      if (it->second.empty()) tags_.erase(it);
    } else if (closed_.ok()) {
      tags_[stream].push(receive);
    } else {
      gone = closed_;
    }
  }
  if (there)
    receive->end(std::move(there));
  else if (!gone.ok())
    receive->end(std::move(gone));
  return receive;
}

Ended TaggedPort::wait(TaggedReceive& receive, const Wait& wait) {
  return wait_through(wait, [&](Nanos until) {
    return link_.wait(receive.event_, [&] { return receive.ended(); }, until);
  });
}

bool TaggedPort::cancel(TaggedReceive& receive) {
  Ref<TaggedReceive> removed;
  {
    std::lock_guard lock(mutex_);
    const auto it = tags_.find(receive.stream_);
    if (it == tags_.end()) return false;
    removed = it->second.remove(receive);
    if (it->second.empty()) tags_.erase(it);
  }
  if (!removed) return false;
  removed->end({Code::kCancelled, "the receive was cancelled"});
  return true;
}

size_t TaggedPort::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}

// The user is done with a message, or has it: the peer may send as much again.
void TaggedPort::received(size_t payload_bytes) {
  uint64_t grant;
  {
    std::lock_guard lock(mutex_);
    grant = receive_window_.consume(cost_of(payload_bytes));
  }
  if (grant != 0) link_.surely([&] { link_.send_credit(wire::kTaggedStreams, grant); });
}

Status TaggedPort::on_message(Ref<Parcel> message) {
  if (!message->header().empty())
    return wire::protocol_error({"MESSAGE frame: header_length is ", message->header().size(),
                                 ", but tagged messages have no header"});
  Ref<TaggedReceive> receive;
  {
    std::lock_guard lock(mutex_);
    if (!receive_window_.arrive(cost_of(message->payload_bytes())))
      return wire::protocol_error({"a tagged message without credit"});
    if (const auto it = tags_.find(message->stream()); it != tags_.end()) {
      receive = it->second.pop();
      if (it->second.empty()) tags_.erase(it);
    }
    if (!receive) {
      tags_[message->stream()].messages.push(std::move(message));
      ++waiting_;
    }
  }
  if (receive) receive->end(std::move(message));
  return {};
}

// Before the bytes of a message that has begun are taken in.
Result<Receiver::Cost> TaggedPort::on_wait(uint64_t, std::span<const std::byte> header,
                                           uint64_t payload_bytes, const Receiver::Cost& ahead) {
  if (!header.empty())
    return wire::protocol_error({"MESSAGE frame: header_length is ", header.size(),
                                 ", but tagged messages have no header"});
  int64_t credit;
  {
    std::lock_guard lock(mutex_);
    credit = receive_window_.credit();
  }
  if (credit <= 0 || ahead.credit >= static_cast<uint64_t>(credit))
    return wire::protocol_error({"a tagged message without credit"});
  return Receiver::Cost{window_cost(cost_of(payload_bytes)), 0};
}

// The message goes to the first receive, unless that is cancelled meanwhile.
Ref<PostedBuffer> TaggedPort::on_land(uint64_t stream, uint64_t size) {
  std::lock_guard lock(mutex_);
  const auto it = tags_.find(stream);
  if (it == tags_.end() || !it->second.first) return nullptr;
  const Ref<PostedBuffer>& into = it->second.first->into_;
  return into && into->owner() && into->size() >= size ? into : nullptr;
}

// ---- ending ----

Status TaggedPort::status_of_loss(const Status& why) {
  return why.code() == Code::kCancelled ? why : Status{Code::kUnavailable, why.details()};
}

void TaggedPort::end_all(const Status& why, bool keep_messages) {
  std::unordered_map<uint64_t, Tag> tags;
  {
    std::lock_guard lock(mutex_);
    if (closed_.ok()) closed_ = why;
    tags.swap(tags_);
    if (keep_messages) {
      for (auto it = tags.begin(); it != tags.end();) {
        const auto next = std::next(it);
        if (!it->second.messages.empty()) tags_.insert(tags.extract(it));
        it = next;
      }
    } else {
      waiting_ = 0;
    }
  }
  for (auto& [stream, tag] : tags)
    while (const Ref<TaggedReceive> receive = tag.pop()) receive->end(why);
  credit_.notify();
  link_.nudge(credit_);
}

}  // namespace tw
