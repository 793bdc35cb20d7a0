// SPDX-License-Identifier: Apache-2.0
// The C ABI: calls at either end, and the queue of ended ones.
#include "abi/abi.h"

using namespace tw;
using namespace tw::abi;

static_assert(TW_ON_END == static_cast<int>(Call::Happening::kEnded) &&
              TW_ON_CUT == static_cast<int>(Call::Happening::kCut) &&
              TW_ON_MESSAGE == static_cast<int>(Call::Happening::kMessage) &&
              TW_ON_ROOM == static_cast<int>(Call::Happening::kRoom) &&
              TW_ON_INITIAL == static_cast<int>(Call::Happening::kInitial));

int tw_call_receive(tw_call* call, const tw_wait* wait, tw_message** out, tw_status* status) try {
  *out = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  auto message = make_ref<tw_message>();
  const Ended next = await_message(*of(call), message->message, wait_of(wait));
  if (next == Ended::kInterrupted) return TW_INTERRUPTED;
  if (next == Ended::kTimeout)
    return report(status, Code::kDeadlineExceeded, "no message came in time");
  if (next == Ended::kDone) *out = message.leak();
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
int tw_call_notify(tw_call* call, int on, tw_events* queue, uint64_t token) try {
  if (on < TW_ON_END || on > TW_ON_INITIAL) return 0;
  of(call)->notify(static_cast<Call::Happening>(on), Ref<EventQueue>::share(of(queue)), token);
  return 1;
} catch (const std::bad_alloc&) {
  return none(0);
}
void tw_call_release(tw_call* call) {
  if (!of(call)->link().inherited()) of(call)->release();
}

int tw_call_send(tw_client_call* call, tw_payload payload, int end, const tw_wait* wait,
                 tw_status* status) try {
  Outbox outbox(payload);
  if (of(call)->link().inherited()) return inherited(status, "call");
  return report(status, send(*of(call), outbox.segments(), end != 0, wait_of(wait)));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_end_send(tw_client_call* call, tw_status* status) try {
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Status ended = of(call)->end_send();
  return ended.ok() ? TW_OK : report(status, ended);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_initial(tw_client_call* call, const tw_wait* wait, tw_metadata** out,
                    tw_status* status) try {
  *out = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Ended ended = wait_initial(*of(call), wait_of(wait));
  if (ended != Ended::kDone) return report(status, ended, "no initial metadata came in time");
  *out = handle(of(call)->initial());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_outcome(tw_client_call* call, const tw_wait* wait, int32_t* code,
                    tw_metadata** trailing, tw_status* status) try {
  *trailing = nullptr;
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Ended ended = wait_ended(*of(call), wait_of(wait));
  if (ended != Ended::kDone) return report(status, ended, "the call has not ended yet");
  const Outcome& outcome = of(call)->outcome();
  *code = static_cast<int32_t>(outcome.code);
  *trailing = handle(outcome.trailing);
  report(status, outcome.code, outcome.details);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_call_details(const tw_client_call* call, const char** details, size_t* size) {
  const bool over = of(call)->ended();
  *details = over ? of(call)->outcome().details.data() : "";
  *size = over ? of(call)->outcome().details.size() : 0;
}

int tw_call_cancel(tw_client_call* call, int32_t code, const char* details) try {
  if (of(call)->link().inherited()) return 0;
  return of(call)->cancel(code_of(code), details ? details : "");
} catch (const std::bad_alloc&) {
  const Shortage shortage;
  return of(call)->cancel(code_of(code), {});
}

void tw_call_method(const tw_server_call* call, const char** method, size_t* size) {
  const std::string_view name = of(call)->method();
  *method = name.data();
  *size = name.size();
}
int tw_call_metadata(const tw_server_call* call, tw_metadata** out, tw_status* status) try {
  *out = nullptr;
  *out = handle(of(call)->metadata());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
const char* tw_call_peer(const tw_call* call) { return of(call)->link().peer().origin().c_str(); }
const char* tw_call_agent(const tw_call* call) { return of(call)->link().peer().agent.c_str(); }
const char* tw_call_transport(const tw_call* call) { return of(call)->link().transport(); }
int tw_call_active(const tw_server_call* call) {
  return of(call)->active() && !of(call)->link().inherited();
}
int tw_call_drop_if_over(tw_server_call* call) try {
  return of(call)->link().inherited() || !of(call)->take_up();
} catch (const std::bad_alloc&) {
  return none(of(call)->ended() ? 1 : 0);
}

int tw_call_send_initial(tw_server_call* call, tw_pairs metadata, tw_status* status) try {
  if (of(call)->link().inherited()) return inherited(status, "call");
  const Status sent = of(call)->send_initial(Pairs(metadata).entries());
  return sent.ok() ? TW_OK : report(status, sent);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_reply(tw_server_call* call, tw_payload payload, const tw_wait* wait,
                  tw_status* status) try {
  Outbox outbox(payload);
  if (of(call)->link().inherited()) return inherited(status, "call");
  return report(status, send(*of(call), outbox.segments(), wait_of(wait)));
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_call_finish(tw_server_call* call, int32_t code, const char* details, size_t details_size,
                   tw_pairs trailing, tw_payload payload, tw_server_call** next,
                   tw_status* status) try {
  if (next) *next = nullptr;
  Outbox outbox(payload);
  if (of(call)->link().inherited()) return inherited(status, "call");
  Ref<ServerCall> following;
  const bool finished = finish(*of(call), code_of(code), {details, details_size},
                               Pairs(trailing).entries(), payload.segments != nullptr,
                               outbox.segments(), outbox.keeper(), next ? &following : nullptr);
  if (following) *next = handle(std::move(following));
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
int tw_events_descriptor(tw_events* queue, int* descriptor, tw_status* status) try {
  const auto made = of(queue)->descriptor();
  if (!made) return report(status, made.status());
  *descriptor = *made;
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
size_t tw_events_wait(tw_events* queue, const tw_wait* wait, uint64_t* tokens, size_t room,
                      int* closed) {
  size_t taken = 0;
  *closed = await_tokens(*of(queue), {tokens, room}, taken, wait_of(wait)) == Ended::kClosed;
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
