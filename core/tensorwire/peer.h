// SPDX-License-Identifier: Apache-2.0
// The C ABI: links and the peers at their other ends: calls, one-sided operations and tagged
// messages begin here.
#ifndef TENSORWIRE_PEER_H
#define TENSORWIRE_PEER_H

#include "tensorwire/process.h"
#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- links ----

typedef struct tw_invitation {
  const char* address;  // shm:<path> or tcp:<host>:<port>
  const uint8_t* session;
  const uint8_t* secret;
  const uint8_t* instance;
  const void* hello;
  size_t hello_size;
  int64_t max_message;  // bytes, -1: the setting
} tw_invitation;

// Makes a link. `serves`, which may be null, serves the calls that the peer begins on it, looks
// after the link, and closes it when it is closed itself. UNAVAILABLE, DEADLINE_EXCEEDED,
// UNAUTHENTICATED, PERMISSION_DENIED.
int tw_connect(const tw_invitation* invitation, tw_server* serves, int64_t timeout_ns,
               tw_link** out, tw_status* status);
// The link closes once the calls that are under way have ended.
void tw_link_release(tw_link* link);

// ---- peers ----

// The process at the other end of a link, whichever of the two has made it: calls, tagged messages
// and one-sided operations are begun here. A peer is gone when its link is: one that connects anew
// is another peer. These are new references, which keep no link open.
tw_peer* tw_call_process(const tw_call* call);
tw_peer* tw_peer_share(tw_peer* peer);
void tw_peer_release(tw_peer* peer);

const char* tw_peer_transport(const tw_peer* peer);
// As gRPC writes it: ipv4:127.0.0.1:4242, unix:.
const char* tw_peer_address(const tw_peer* peer);
// Of a client, as the bootstrap saw them: where it came from, and its program. Empty: unknown.
const char* tw_peer_caller(const tw_peer* peer);
const char* tw_peer_agent(const tw_peer* peer);
// 0 unless it runs on this host, in a pid namespace that this process knows.
int32_t tw_peer_pid(const tw_peer* peer);
// 0 once it is gone, or said that it goes away.
int tw_peer_alive(const tw_peer* peer);
// Why it is not alive.
void tw_peer_death(const tw_peer* peer, tw_status* why);
// Puts the token into the queue once the peer is gone, at once if it is. 0: no memory, it never
// comes.
int tw_peer_notify_gone(tw_peer* peer, tw_events* queue, uint64_t token);
void tw_peer_stats(tw_peer* peer, tw_visit_statistics visit, void* context);
// What the link has kept, oldest first; the result counts all that it has noted. 0 as well without
// memory for it.
uint64_t tw_peer_trace(const tw_peer* peer, tw_visit_event visit, void* context);
// Calls under way end with CANCELLED.
void tw_peer_close(tw_peer* peer);

enum {
  TW_HALF_CLOSE = 1,  // no message follows
  // However the peer ends the call, it lasts until its messages have been taken. It has to be read
  // to its end or cancelled.
  TW_UNTIL_READ = 2,
};
// Begins a call with its first message (unless payload.segments is null). Without a keeper it waits
// for memory that is not lent. A peer that serves no calls ends it with UNIMPLEMENTED.
int tw_peer_start(tw_peer* peer, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, int flags, const tw_wait* wait, tw_client_call** out,
                  tw_status* status);

typedef struct tw_reply {
  tw_message* message;    // null unless the call brought one
  tw_metadata* initial;   // null: empty
  tw_metadata* trailing;  // null: empty
} tw_reply;
// A whole unary call. The result is the call's status; timeout_ns is its deadline. Fill *reply with
// nulls before.
int tw_peer_unary(tw_peer* peer, const char* method, size_t method_size, tw_pairs metadata,
                  tw_payload payload, const tw_wait* wait, tw_reply* reply, tw_status* status);

// ---- one-sided operations ----

// Rights on a region, to be added up.
enum { TW_MAY_READ = 1, TW_MAY_WRITE = 2, TW_MAY_UPDATE = 4 };

// Lets the peer, and nobody else, at [data, data + size), and names the region on this link; the
// peer knows it before any message that is sent afterwards. The memory stays as it is until
// tw_peer_conceal, or the end of the link; `owner` (may be null) is told then. Memory for updates
// begins at a multiple of 8. INVALID_ARGUMENT, UNIMPLEMENTED, RESOURCE_EXHAUSTED, or why the link
// is gone.
int tw_peer_expose(tw_peer* peer, void* data, size_t size, uint32_t rights, const tw_owner* owner,
                   uint64_t* region, tw_status* status);
// Once it returns, the peer neither reads nor writes there. NOT_FOUND: it was concealed before, or
// the link is gone.
int tw_peer_conceal(tw_peer* peer, uint64_t region, tw_status* status);
// A region that the peer has exposed. 0: there is none of this name.
int tw_peer_region(tw_peer* peer, uint64_t region, uint64_t* size, uint32_t* rights);

enum {
  TW_READ = 0,
  TW_WRITE = 1,
  TW_WRITE_IMMEDIATE = 2,  // a write whose end the peer hears of, with a value
  TW_FETCH_ADD = 3,
  TW_COMPARE_SWAP = 4
};

typedef struct tw_access_request {
  int32_t kind;
  uint32_t immediate;  // TW_WRITE_IMMEDIATE
  uint64_t region;     // the peer's name for it
  uint64_t offset;     // in the region; for the atomics a multiple of 8
  void* local;      // what is written; where to read to; of an atomic, 8 bytes for the value before
  uint64_t length;  // 8 for the atomics
  uint64_t operand;   // what to add, or to swap in
  uint64_t expected;  // TW_COMPARE_SWAP
} tw_access_request;

// Begins an operation. An operation sees what this process's writes and atomics before it have
// done; a write may overtake reads and atomics that have not ended. `local` stays as it is until
// the end, which `owner` is told of, and then `queue` gets the token (both may be null). It cannot
// be called back. NOT_FOUND, PERMISSION_DENIED, OUT_OF_RANGE, INVALID_ARGUMENT, UNIMPLEMENTED, or
// why the link is gone: nothing has begun.
int tw_peer_access(tw_peer* peer, const tw_access_request* request, const tw_owner* owner,
                   tw_events* queue, uint64_t token, tw_access** out, tw_status* status);
// How it ended. DEADLINE_EXCEEDED: it has not yet.
int tw_access_wait(tw_access* access, const tw_wait* wait, tw_status* status);
int tw_access_ended(const tw_access* access);
// One that has not ended goes on.
void tw_access_release(tw_access* access);
// The next value of the peer's writes with immediate, in order. DEADLINE_EXCEEDED: none came in
// time; else why none will come.
int tw_peer_immediate(tw_peer* peer, const tw_wait* wait, uint32_t* value, tw_status* status);

// ---- tagged messages ----

// Either end of a link sends messages with a tag, and the other one asks for them by it. Those of
// one tag are received in the order in which they were sent. What nobody has asked for waits,
// within one credit for all tags: then its sender waits.

// Tags go up to this.
#define TW_MAX_TAG (UINT64_MAX >> 1)

// Sends a message once the peer has credit for it. `payload` has no keeper. INVALID_ARGUMENT,
// UNIMPLEMENTED (the peer knows no tagged messages), DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: the
// peer will not see the message; nor will it when this is interrupted. Or why the link is gone:
// then it may have seen it.
int tw_peer_send(tw_peer* peer, uint64_t tag, tw_payload payload, const tw_wait* wait,
                 tw_status* status);
// Asks for the next message of a tag. With `into`, `size` bytes that nobody else touches until
// `owner` is told, its segments come there, one after the other; null: they stay where they come
// to lie, and `owner` is not looked at. Once it has ended `queue` gets the token (may be null).
// INVALID_ARGUMENT, UNIMPLEMENTED: nothing has begun, and `owner` has been told.
int tw_peer_receive(tw_peer* peer, uint64_t tag, void* into, size_t size, const tw_owner* owner,
                    tw_events* queue, uint64_t token, tw_receive** out, tw_status* status);
// The message, once: afterwards null. OUT_OF_RANGE: it is larger than `size`, and was dropped.
// CANCELLED, or why the link is gone: none came. DEADLINE_EXCEEDED: it has not ended yet.
int tw_receive_wait(tw_receive* receive, const tw_wait* wait, tw_message** message,
                    tw_status* status);
int tw_receive_ended(const tw_receive* receive);
// Ends it as CANCELLED. 0: it had ended.
int tw_receive_cancel(tw_receive* receive);
// One that has not ended goes on; a message that was not taken is dropped.
void tw_receive_release(tw_receive* receive);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_PEER_H
