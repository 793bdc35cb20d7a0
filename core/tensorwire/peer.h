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
  const char* address;  // <transport>:<where>, as the server says
  const uint8_t* session;
  const uint8_t* secret;
  const uint8_t* instance;
  const void* hello;
  size_t hello_size;
  int64_t max_message;  // bytes, -1: the setting
  // Thresholds of what this end sends, by their place in tw_thresholds; -1: the setting, or the
  // table of tensorwire tune links.
  int64_t thresholds[TW_THRESHOLDS];
} tw_invitation;

// Makes a link. INVALID_ARGUMENT: a threshold is out of its range. `serves`, which may be null,
// serves the calls that the peer begins on it, looks after the link, and closes it when it is
// closed itself. UNAVAILABLE, DEADLINE_EXCEEDED, UNAUTHENTICATED, PERMISSION_DENIED.
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
  tw_client_call* cut;    // null, unless *status has not all of the details: tw_call_details
} tw_reply;
typedef struct tw_place {
  void* data;  // null: anywhere
  size_t size;
} tw_place;
// A whole unary call. The result is the call's status; timeout_ns is its deadline. Fill *reply with
// nulls before. Segment i of the reply is received straight into places[i] if it has exactly that
// size and comes over the link in chunks, as large ones do over TCP: then the message's segment
// lies there. Other segments lie anywhere, as all do where `count` is 0. Whatever the result,
// places may have been written, and once this returns nobody writes there any more.
int tw_peer_unary_into(tw_peer* peer, const char* method, size_t method_size, tw_pairs metadata,
                       tw_payload payload, const tw_place* places, size_t count,
                       const tw_wait* wait, tw_reply* reply, tw_status* status);

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
// Once it returns TW_OK, the peer neither reads nor writes there. Nothing begins there any more,
// whatever it returns; it waits for the peer that is amid an access of memory that it has mapped,
// or for its death. NOT_FOUND: it was concealed before, or the link is gone. DEADLINE_EXCEEDED,
// TW_INTERRUPTED: the peer is still at it; another call waits again.
int tw_peer_conceal(tw_peer* peer, uint64_t region, const tw_wait* wait, tw_status* status);
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
  // So many runs of `length` bytes, 0 meaning 1, each of which begins so many bytes after the one
  // before. TW_READ and TW_WRITE.
  uint64_t count;
  uint64_t stride;        // in the region
  uint64_t local_stride;  // in `local`
} tw_access_request;

// Begins an operation. An operation sees what this process's writes and atomics before it have
// done; a write may overtake reads and atomics that have not ended. `local` stays as it is until
// the end, which `owner` is told of, and then `queue` gets the token (both may be null). It cannot
// be called back. NOT_FOUND, PERMISSION_DENIED, OUT_OF_RANGE, INVALID_ARGUMENT, UNIMPLEMENTED, or
// why the link is gone: nothing has begun.
int tw_peer_access(tw_peer* peer, const tw_access_request* request, const tw_owner* owner,
                   tw_events* queue, uint64_t token, tw_access** out, tw_status* status);
// Whether operations on a region of the peer's are loads and stores of this process. Reads of its
// arena are not while writes on this link go by frames, which they must not overtake.
int tw_peer_mapped(tw_peer* peer, uint64_t region);
// Ok, or why they are not. NOT_FOUND: there is none of this name.
int tw_peer_why_not_mapped(tw_peer* peer, uint64_t region, tw_status* status);
// The word that is set (TW_MAY_WRITE) or added to (TW_MAY_UPDATE) after everything else of a write,
// or a batch, is there.
typedef struct tw_signal {
  uint64_t region;
  uint64_t offset;  // a multiple of 8
  uint64_t value;
  int32_t add;  // 0: set
} tw_signal;

// Does the whole operation, if what it names is mapped, without a handle and without waiting; *done
// says whether. TW_OK and 0: use tw_peer_access. `signal`, of a write, may be null. Errors: as
// there.
int tw_peer_access_mapped(tw_peer* peer, const tw_access_request* request, const tw_signal* signal,
                          int* done, tw_status* status);
// What is begun on this link from now on happens after all that has been begun, reads, too.
void tw_peer_fence(tw_peer* peer);
// An access that ends once all that has been begun on this link has been done at the peer, or has
// failed.
int tw_peer_flush(tw_peer* peer, tw_access** out, tw_status* status);

// Reads and writes that are checked once, and end as one. A signal, which may be null, follows
// writes only. `local` of the requests must be good whenever the batch is begun. Errors: as
// tw_peer_access.
int tw_peer_prepare(tw_peer* peer, const tw_access_request* requests, size_t count,
                    const tw_signal* signal, tw_batch** out, tw_status* status);
uint64_t tw_batch_size(const tw_batch* batch);  // bytes of all requests
uint64_t tw_batch_runs(const tw_batch* batch);  // of adjacent bytes
void tw_batch_release(tw_batch* batch);
// As tw_peer_access. `value`: another one for the signal; may be null. A batch may be under way
// more than once.
int tw_batch_start(tw_batch* batch, const uint64_t* value, const tw_owner* owner, tw_events* queue,
                   uint64_t token, tw_access** out, tw_status* status);

// Waits until a word of a region of this process's, 8 bytes at a multiple of 8, is at least so
// much, whichever peer or thread of this process (tw_peer_change_word) changes it. *value: what it
// was in the end. DEADLINE_EXCEEDED: it is less. NOT_FOUND, or why the link is gone: this peer
// cannot raise it any more. OUT_OF_RANGE, INVALID_ARGUMENT.
int tw_peer_wait_word(tw_peer* peer, uint64_t region, uint64_t offset, uint64_t at_least,
                      const tw_wait* wait, uint64_t* value, tw_status* status);
// Sets such a word, or adds to it, and wakes who waits for it. *before: what it was.
int tw_peer_change_word(tw_peer* peer, uint64_t region, uint64_t offset, uint64_t value, int add,
                        uint64_t* before, tw_status* status);

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
// Asks for the next message of a tag. With `into`, `size` bytes that nobody else touches until it
// has ended and its message was taken, its segments come there, one after the other; `owner` keeps
// them until it is told. Null: they stay where they come to lie, and `owner` is not looked at. Once
// it has ended `queue` gets the token (may be null). INVALID_ARGUMENT, UNIMPLEMENTED: nothing has
// begun, and `owner` has been told.
int tw_peer_receive(tw_peer* peer, uint64_t tag, void* into, size_t size, const tw_owner* owner,
                    tw_events* queue, uint64_t token, tw_receive** out, tw_status* status);
// The message, once: afterwards null. OUT_OF_RANGE: it is larger than `size`, and was dropped.
// CANCELLED, or why the link is gone: none came. DEADLINE_EXCEEDED: it has not ended yet.
int tw_receive_wait(tw_receive* receive, const tw_wait* wait, tw_message** message,
                    tw_status* status);
int tw_receive_ended(const tw_receive* receive);
// Ends it as CANCELLED. 0: it had ended. What had come to its memory of a message is copied for who
// asks next, and nobody writes there any more.
int tw_receive_cancel(tw_receive* receive);
// One that has not ended goes on; a message that was not taken is dropped.
void tw_receive_release(tw_receive* receive);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_PEER_H
