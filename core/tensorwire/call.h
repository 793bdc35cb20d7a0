// SPDX-License-Identifier: Apache-2.0
// The C ABI: calls at either end, and the queue of what happens.
#ifndef TENSORWIRE_CALL_H
#define TENSORWIRE_CALL_H

#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- calls ----

// Either end:
// The next message; *out is null after the last one.
int tw_call_receive(tw_call* call, const tw_wait* wait, tw_message** out, tw_status* status);
// The same without waiting or looking at the link: 0 when no message is there yet, or no memory for
// one; it can still be taken then.
int tw_call_take(tw_call* call, tw_message** out);
// Whether a small message can be sent without waiting.
int tw_call_sendable(tw_call* call);
int tw_call_ended(const tw_call* call);
int64_t tw_call_time_left(const tw_call* call);  // ns, negative: no deadline
enum {
  TW_ON_END = 0,
  TW_ON_CUT = 1,  // it has ended, but not by tw_call_finish: it was cancelled, or its link is lost
  TW_ON_MESSAGE = 2,  // tw_call_take has one, or there will be none
  TW_ON_ROOM = 3,     // tw_call_sendable
  TW_ON_INITIAL = 4,  // the server's initial metadata has come, or never will
};
// Puts the token into the queue once that has happened, at once if it has. 0: no memory, or there
// is no such thing: it never comes.
int tw_call_notify(tw_call* call, int on, tw_events* queue, uint64_t token);
const char* tw_call_peer(const tw_call* call);
const char* tw_call_agent(const tw_call* call);  // empty: unknown
const char* tw_call_transport(const tw_call* call);
void tw_call_release(tw_call* call);

// The client's end:
// CANCELLED when the call has already ended. After TW_INTERRUPTED and DEADLINE_EXCEEDED the peer
// will not see the message, which may be sent again; so with tw_call_reply.
int tw_call_send(tw_client_call* call, tw_payload payload, int end, const tw_wait* wait,
                 tw_status* status);
int tw_call_end_send(tw_client_call* call, tw_status* status);
int tw_call_initial(tw_client_call* call, const tw_wait* wait, tw_metadata** out,
                    tw_status* status);
// Waits for the end, then gives the call's code in *code. DEADLINE_EXCEEDED: `wait` ended first.
int tw_call_outcome(tw_client_call* call, const tw_wait* wait, int32_t* code,
                    tw_metadata** trailing, tw_status* status);
// The details of a call that has ended, which a tw_status cuts: UTF-8, not terminated, perhaps with
// zeros in it. They stay until the call is released. Before the end there are none.
void tw_call_details(const tw_client_call* call, const char** details, size_t* size);
// 0: it had ended. Without memory for the details, it ends without them.
int tw_call_cancel(tw_client_call* call, int32_t code, const char* details);

// The server's end:
void tw_call_method(const tw_server_call* call, const char** method, size_t* size);
// A new reference, null: empty.
int tw_call_metadata(const tw_server_call* call, tw_metadata** out, tw_status* status);
int tw_call_active(const tw_server_call* call);
// 1 when nobody waits for the call any more (it was cancelled, its deadline has passed, or its link
// is lost): it is over then, and counted. Ask before a call that had to wait is served.
int tw_call_drop_if_over(tw_server_call* call);
// Once, else FAILED_PRECONDITION.
int tw_call_send_initial(tw_server_call* call, tw_pairs metadata, tw_status* status);
int tw_call_reply(tw_server_call* call, tw_payload payload, const tw_wait* wait, tw_status* status);
// CANCELLED when the call was no longer active. Without a keeper it waits for memory that is not
// lent, at most to the call's deadline. With `next`, polls the link for the next call for
// at most the spin budget.
int tw_call_finish(tw_server_call* call, int32_t code, const char* details, size_t details_size,
                   tw_pairs trailing, tw_payload payload, tw_server_call** next, tw_status* status);

// ---- events ----

tw_events* tw_events_create(void);  // null: no memory
// A descriptor that is readable while there are tokens, and once the queue is closed: for an event
// loop, which then calls tw_events_wait with a timeout of 0. It is the queue's. RESOURCE_EXHAUSTED.
int tw_events_descriptor(tw_events* queue, int* descriptor, tw_status* status);
// Up to `room` tokens; 0 once closed, or on timeout (then *closed is 0). Several threads may wait:
// each token goes to one.
size_t tw_events_wait(tw_events* queue, const tw_wait* wait, uint64_t* tokens, size_t room,
                      int* closed);
// A token of the caller's own. 0: no memory for it. Tokens that are taken leave their room to
// others, and a queue has room for a few from its beginning.
int tw_events_push(tw_events* queue, uint64_t token);
void tw_events_close(tw_events* queue);
void tw_events_release(tw_events* queue);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_CALL_H
