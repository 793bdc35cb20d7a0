// SPDX-License-Identifier: Apache-2.0
// A call as its server has it.
#include <new>

#include "base/shortage.h"
#include "call/server.h"

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

ServerCall::ServerCall(Ref<ServerPort> port, uint64_t stream, Nanos deadline,
                       ReceivedMetadata metadata, std::string_view method)
    : Call(std::move(port), stream, deadline), metadata_(std::move(metadata)), method_(method) {}

size_t ServerCall::most_unread() const { return server_port().server_->most_unread(); }

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

// Nobody is to hear of its end. The caller has won begin_ending().
void ServerCall::drop() {
  over();
  finish_ending();
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
    // A server that lets any amount of payload wait has not said so of statuses: what they take is
    // memory of their own.
    const bool crowded = unread > most_unread() ||
                         (!payload && link_.queued() > link_.runtime().settings().unread_bytes);
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
  // seq_cst with Link::withdraw_stream(): that finds the reply, or this the cancellation.
  if (cancelled_.load()) link_.surely([this] { link_.withdraw_stream(stream_); });
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
  if (!port.link_.try_drive()) {
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
    port.link_.at_pace([&](Nanos until) {
      port.link_.baton().held();
      return port.link_.drive(sent, until);
    });
  }
  port.link_.drive_briefly(
      [&] { return static_cast<bool>(next) || (outgoing && outgoing->borrowed()); },
      [&] {
        port.link_.baton().held();
        port.poll_slot_ = nullptr;
      });
  if (outgoing) depart(outgoing, segments, keeper);
  return finished;
}

Status ServerCall::on_message(Ref<Parcel> message) {
  const auto header = header_of(*message);
  if (!header) return header.status();
  if (header->has(flag::kCancel)) {
    if (begin_ending()) {
      drop();
    } else {
      cancelled_.store(true);
      link_.withdraw_stream(stream_);
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

void ServerCall::on_lost(const Status& why) {
  if (!begin_ending()) return;
  // Of a link that only closes: it began when the others were told.
  link_.surely([&] { send_status(Code::kUnavailable, why.details(), false); });
  drop();
}

}  // namespace tw
