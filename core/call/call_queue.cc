// SPDX-License-Identifier: Apache-2.0
#include "call/call_queue.h"

#include <utility>

#include "wire/bytes.h"

namespace tw {

namespace flag = wire::call_flag;

Result<wire::CallHeaderView> header_of(const Parcel& message) {
  auto header = wire::decode_call_header(message.header());
  if (header && message.segments() != 0 && !header->has(flag::kPayload))
    header = wire::protocol_error({"call header: flags are ", header->flags,
                                   ", without PAYLOAD, of ", message.segments(), " segments"});
  return header;
}

bool CallQueue::add(Ref<Parcel> start, Nanos deadline, size_t window, bool ended) {
  if (entries_.size() >= kMost) return false;
  const uint64_t stream = start->stream();
  Entry& entry = entries_.try_emplace(stream, window, deadline).first->second;
  entry.ended = ended;
  (void)entry.window.arrive(start->payload_bytes());
  entry.messages.push(std::move(start));
  order_.push_back(stream);
  return true;
}

Result<bool> CallQueue::add_to(Ref<Parcel>& message) {
  const auto at = entries_.find(message->stream());
  if (at == entries_.end()) return false;
  Entry& entry = at->second;
  const auto header = header_of(*message);
  if (!header) return header.status();
  if (header->has(flag::kCancel)) {
    entries_.erase(at);
    forget_gone();
    return true;
  }
  if (header->has(flag::kStart)) return wire::protocol_error({"a call was started twice"});
  if (header->has(flag::kInitial))
    return wire::protocol_error({"a client sends metadata when it starts a call"});
  if (header->has(flag::kPayload)) {
    if (entry.ended) return wire::protocol_error({"a message after the last one of its call"});
    if (!entry.window.arrive(message->payload_bytes()))
      return wire::protocol_error({"a message without credit"});
  }
  entry.ended = entry.ended || header->has(flag::kEnd);
  // Without payload there is no charge, so nothing of it is kept.
  if (header->has(flag::kPayload) || !message->ok()) entry.messages.push(std::move(message));
  return true;
}

// A client that starts calls and cancels them leaves no more behind than those that wait.
void CallQueue::forget_gone() {
  if (order_.size() > 2 * entries_.size() + kMostGone)
    std::erase_if(order_, [this](uint64_t stream) { return !entries_.contains(stream); });
}

bool CallQueue::pop(Entry& entry) {
  while (!order_.empty()) {
    const auto at = entries_.find(order_.front());
    order_.pop_front();
    if (at == entries_.end()) continue;
    entry.deadline = at->second.deadline;
    entry.ended = at->second.ended;
    entry.messages.swap(at->second.messages);
    entries_.erase(at);
    return true;
  }
  return false;
}

}  // namespace tw
