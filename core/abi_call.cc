// SPDX-License-Identifier: Apache-2.0
// The C ABI: calls at either end, and the queue of ended ones.
#include "abi.h"

using namespace tw;
using namespace tw::abi;

int tw_call_receive(tw_call* call, const tw_wait* wait, tw_message** out, tw_status* status) try {
  *out = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  // Without a wait while messages are there: a stream is read at full speed.
  if (!(*out = take(*of(call)))) {
    switch (wait_through(wait, deadline_of(wait),
                         [&](Nanos slice) { return of(call)->wait_message(slice); })) {
      case Ended::kDone:
        break;
      case Ended::kTimeout:
        return report(status, Code::kDeadlineExceeded, "no message came in time");
      case Ended::kInterrupted:
        return TW_INTERRUPTED;
    }
    *out = take(*of(call));
  }
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_take(tw_call* call, tw_message** out) try {
  if (of(call)->link().inherited()) return 0;
  tw_message* const message = take(*of(call));
  if (!message) return 0;
  *out = message;
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}

int tw_call_sendable(tw_call* call) {
  return !of(call)->link().inherited() && of(call)->sendable();
}

int tw_call_ended(const tw_call* call) { return of(call)->ended() || of(call)->link().inherited(); }
int64_t tw_call_time_left(const tw_call* call) {
  const Nanos deadline = of(call)->deadline();
  return deadline == kForever ? -1 : std::max<Nanos>(0, deadline - now());
}
int tw_call_notify(tw_call* call, tw_events* queue, uint64_t token) try {
  of(call)->notify(Ref<EventQueue>::share(of(queue)), token);
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}
int tw_call_notify_cut(tw_call* call, tw_events* queue, uint64_t token) try {
  of(call)->notify(Ref<EventQueue>::share(of(queue)), token, true);
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}
void tw_call_release(tw_call* call) {
  if (!of(call)->link().inherited()) of(call)->release();
}

namespace {

// A message of a stream: credit, staging, sending, and the memory back.
template <class Send>
int send_in_stream(Call& call, tw_payload payload, const tw_wait* wait, tw_status* status,
                   Send&& send) {
  Outbox outbox(payload);
  if (call.link().inherited()) return inherited(status, "call");
  const Nanos deadline = std::min(deadline_of(wait), call.deadline());
  const auto late = [&] { return report(status, Code::kDeadlineExceeded, "Deadline Exceeded"); };
  switch (wait_through(wait, deadline, [&](Nanos slice) { return call.wait_sendable(slice); })) {
    case Ended::kDone:
      break;
    case Ended::kTimeout:
      return late();
    case Ended::kInterrupted:
      return TW_INTERRUPTED;
  }
  if (call.over()) return report(status, Code::kCancelled, "the call has ended");
  call.stage(outbox.segments());
  auto sent = send(outbox);
  if (!sent)
    return report(status, call.over() ? Code::kCancelled : sent.status().code(),
                  sent.status().details());
  switch (await_sent(call, *sent, wait, deadline)) {
    case Ended::kDone:
      return TW_OK;
    case Ended::kTimeout:
      return late();
    case Ended::kInterrupted:
      return TW_INTERRUPTED;
  }
  return TW_OK;
}

constexpr size_t kDeferBytes = 1024;

}  // namespace

int tw_call_send(tw_call* call, tw_payload payload, int end, const tw_wait* wait,
                 tw_status* status) try {
  return send_in_stream(*of(call), payload, wait, status, [&](Outbox& outbox) {
    const bool defer = outbox.bytes() <= kDeferBytes && of(call)->in_burst();
    return client(call)->send_message(outbox.segments(), end != 0, defer);
  });
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_end_send(tw_call* call, tw_status* status) try {
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Status ended = client(call)->end_send();
  return ended.ok() ? TW_OK : report(status, ended);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_initial(tw_call* call, const tw_wait* wait, tw_metadata** out, tw_status* status) try {
  *out = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  switch (wait_through(wait, deadline_of(wait),
                       [&](Nanos slice) { return client(call)->wait_initial(slice); })) {
    case Ended::kDone:
      break;
    case Ended::kTimeout:
      return report(status, Code::kDeadlineExceeded, "no initial metadata came in time");
    case Ended::kInterrupted:
      return TW_INTERRUPTED;
  }
  *out = handle(client(call)->initial());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_outcome(tw_call* call, const tw_wait* wait, int32_t* code, tw_metadata** trailing,
                    tw_status* status) try {
  *trailing = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  if (!of(call)->ended()) {
    switch (wait_through(wait, deadline_of(wait),
                         [&](Nanos slice) { return of(call)->wait_ended(slice); })) {
      case Ended::kDone:
        break;
      case Ended::kTimeout:
        return report(status, Code::kDeadlineExceeded, "the call has not ended yet");
      case Ended::kInterrupted:
        return TW_INTERRUPTED;
    }
  }
  const Outcome& outcome = client(call)->outcome();
  *code = static_cast<int32_t>(outcome.code);
  *trailing = handle(outcome.trailing);
  report(status, outcome.code, outcome.details);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_cancel(tw_call* call, int32_t code, const char* details) try {
  if (of(call)->link().inherited()) return 0;
  return client(call)->cancel(code_of(code), details ? details : "");
} catch (const std::bad_alloc&) {
  const Shortage shortage;
  return client(call)->cancel(code_of(code), {});
}

void tw_call_method(const tw_call* call, const char** method, size_t* size) {
  const std::string_view name = static_cast<const ServerCall*>(of(call))->method();
  *method = name.data();
  *size = name.size();
}
int tw_call_metadata(const tw_call* call, tw_metadata** out, tw_status* status) try {
  *out = nullptr;
  *out = handle(static_cast<const ServerCall*>(of(call))->metadata());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
const char* tw_call_peer(const tw_call* call) {
  const Peer& peer = of(call)->link().peer();
  return (peer.caller.empty() ? peer.address : peer.caller).c_str();
}
const char* tw_call_agent(const tw_call* call) { return of(call)->link().peer().agent.c_str(); }
const char* tw_call_transport(const tw_call* call) { return of(call)->link().transport(); }
int tw_call_active(const tw_call* call) {
  return static_cast<const ServerCall*>(of(call))->active() && !of(call)->link().inherited();
}
int tw_call_drop_if_over(tw_call* call) try {
  if (of(call)->link().inherited() || server(call)->drop_if_over()) return 1;
  server(call)->begun();
  return 0;
} catch (const std::bad_alloc&) {
  return none(of(call)->ended() ? 1 : 0);
}
void tw_call_link_stats(tw_call* call, tw_visit_fact visit, void* context) try {
  visit_stats(of(call)->link(), of(call)->link().stats(), visit, context);
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}

int tw_call_send_initial(tw_call* call, tw_pairs metadata, tw_status* status) try {
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Status sent = server(call)->send_initial(Pairs(metadata).entries());
  return sent.ok() ? TW_OK : report(status, sent);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_reply(tw_call* call, tw_payload payload, const tw_wait* wait, tw_status* status) try {
  return send_in_stream(*of(call), payload, wait, status, [&](Outbox& outbox) {
    const bool defer = outbox.bytes() <= kDeferBytes && of(call)->in_burst();
    return server(call)->send_message(outbox.segments(), defer);
  });
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_finish(tw_call* call, int32_t code, const char* details, size_t details_size,
                   tw_pairs trailing, tw_payload payload, tw_call** next, tw_status* status) try {
  if (next) *next = nullptr;
  Outbox outbox(payload);
  if (of(call)->link().inherited()) return inherited(status, "call");
  const bool has_payload = payload.segments != nullptr;
  const Pairs pairs(trailing);
  std::span<OutSegment> segments = outbox.segments();
  std::string_view text(details, details_size);
  Code answer = code_of(code);
  of(call)->stage(segments);
  Status checked = wire::check_metadata(pairs.entries());
  if (checked.ok()) checked = wire::check_details(text);
  auto entries = pairs.entries();
  if (!checked.ok()) {
    answer = checked.code();
    text = checked.details();
    entries = {};
  }
  const bool with_payload = checked.ok() && has_payload;
  if (!with_payload) segments = {};
  bool finished;
  if (next) {
    Ref<ServerCall> following;
    finished = server(call)->finish_and_poll(answer, text, entries, with_payload, segments,
                                             outbox.keeper(), following);
    if (following) *next = handle(std::move(following));
  } else {
    finished = server(call)->finish(answer, text, entries, with_payload, segments, outbox.keeper());
  }
  if (!finished) return report(status, Code::kCancelled, "the call has ended");
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

tw_events* tw_events_create() try {
  return reinterpret_cast<tw_events*>(make_ref<EventQueue>().leak());
} catch (const std::bad_alloc&) {
  return none<tw_events*>();
}
size_t tw_events_wait(tw_events* queue, const tw_wait* wait, uint64_t* tokens, size_t room,
                      int* closed) {
  *closed = 0;
  size_t taken = 0;
  (void)wait_through(wait, deadline_of(wait), [&](Nanos slice) {
    switch (of(queue)->take({tokens, room}, taken, slice)) {
      case EventQueue::Taken::kClosed:
        *closed = 1;
        return Waited::kDone;
      case EventQueue::Taken::kTokens:
        return Waited::kDone;
      case EventQueue::Taken::kTimeout:
        return Waited::kTimeout;
      case EventQueue::Taken::kSignal:
        return Waited::kSignal;
    }
    return Waited::kDone;
  });
  return taken;
}
int tw_events_push(tw_events* queue, uint64_t token) try {
  of(queue)->push(token);
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}
void tw_events_close(tw_events* queue) { of(queue)->close(); }
void tw_events_release(tw_events* queue) { of(queue)->release(); }
