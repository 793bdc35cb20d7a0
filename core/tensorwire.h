// SPDX-License-Identifier: Apache-2.0
// The C ABI of the tensorwire runtime: the one door for the Python binding, framework plugins and
// foreign code.
//
// Handles are opaque and counted; each tw_*_release gives one reference back. All functions may be
// called from any thread, and none calls back except through tw_wait, visitors and tw_owner.
//
// Results: TW_OK is success, a positive number a TW_CODE_* whose sentence is in *status (which may
// be null), and TW_INTERRUPTED means that tw_wait.interrupted asked to give up.
//
// Memory: no function throws. One that has no memory for its work gives RESOURCE_EXHAUSTED; one
// without a status gives null or 0, and nothing was done. Visits stop early, and may have begun.
// What closes or releases does its work nevertheless: a link to which that cannot be told is lost.
//
// Waiting: each function that may wait takes a tw_wait. It waits no longer than timeout_ns
// (negative: for ever), and calls interrupted(context), with no lock held, on each signal and at
// least every quarter of a second.
//
// Memory to send is only read, and may be written or freed once the function has returned, unless
// it is lent with a tw_owner or kept by a tw_keeper.
//
// Fork: handles made before fork() fail with FAILED_PRECONDITION in the child, and releasing them
// does nothing there.
#ifndef TENSORWIRE_H
#define TENSORWIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TW_OK = 0, TW_INTERRUPTED = -1 };

typedef struct tw_buffer tw_buffer;      // a run of bytes: received, or of this process's arena
typedef struct tw_message tw_message;    // a received message: its segments
typedef struct tw_metadata tw_metadata;  // received metadata
typedef struct tw_peer tw_peer;          // the process at the other end of a link
typedef struct tw_link tw_link;          // a tw_peer, too: of a link that this process has made
typedef struct tw_call tw_call;          // one RPC, at either end
typedef struct tw_client_call tw_client_call;  // a tw_call, too
typedef struct tw_server_call tw_server_call;  // a tw_call, too
typedef struct tw_events tw_events;            // a queue of tokens: what has ended
typedef struct tw_server tw_server;            // a listener, its links and the calls on them
typedef struct tw_access tw_access;            // a one-sided operation under way
typedef struct tw_receive tw_receive;          // a tagged message that is asked for

// C++ takes a call of either end for a tw_call, and a link for a tw_peer; in C these say so.
#ifdef __cplusplus
struct tw_peer {
  tw_peer() = delete;
};
struct tw_link : tw_peer {};
struct tw_call {
  tw_call() = delete;
};
struct tw_client_call : tw_call {};
struct tw_server_call : tw_call {};
#else
static inline tw_peer* tw_link_as_peer(tw_link* link) { return (tw_peer*)link; }
static inline tw_call* tw_client_as_call(tw_client_call* call) { return (tw_call*)call; }
static inline tw_call* tw_server_as_call(tw_server_call* call) { return (tw_call*)call; }
#endif

// gRPC's.
enum {
  TW_CODE_OK = 0,
  TW_CODE_CANCELLED = 1,
  TW_CODE_UNKNOWN = 2,
  TW_CODE_INVALID_ARGUMENT = 3,
  TW_CODE_DEADLINE_EXCEEDED = 4,
  TW_CODE_NOT_FOUND = 5,
  TW_CODE_ALREADY_EXISTS = 6,
  TW_CODE_PERMISSION_DENIED = 7,
  TW_CODE_RESOURCE_EXHAUSTED = 8,
  TW_CODE_FAILED_PRECONDITION = 9,
  TW_CODE_ABORTED = 10,
  TW_CODE_OUT_OF_RANGE = 11,
  TW_CODE_UNIMPLEMENTED = 12,
  TW_CODE_INTERNAL = 13,
  TW_CODE_UNAVAILABLE = 14,
  TW_CODE_DATA_LOSS = 15,
  TW_CODE_UNAUTHENTICATED = 16
};

typedef struct tw_status {
  int32_t code;
  char details[1020];  // UTF-8, cut to fit, terminated
} tw_status;

typedef struct tw_wait {
  int64_t timeout_ns;
  int (*interrupted)(void* context);  // non-zero: give up; may be null
  void* context;
} tw_wait;

typedef struct tw_segment {
  const void* data;
  size_t size;
} tw_segment;

typedef struct tw_pair {
  const char* key;
  size_t key_size;
  const char* value;
  size_t value_size;
} tw_pair;

// Lends a segment: its bytes stay as they are until release(context), which is called exactly once,
// whatever becomes of the message, perhaps before the function that was given it returns. It comes
// from any thread, perhaps one of the runtime's that has others to serve: it must not block.
// Lent arena memory travels without a copy. Null `release`: the segment is not lent.
typedef struct tw_owner {
  void (*release)(void* context);
  void* context;
} tw_owner;

// Lets tw_peer_start and tw_call_finish leave although the peer is slow to take what is sent. Then
// keep(context) is called, once at most and before they return, by the thread that called them. It
// gives whom to tell once nobody reads the segments any more that are not lent; until then they
// stay as they are. Null `keep`: they may change, and are copied.
typedef struct tw_keeper {
  tw_owner (*keep)(void* context);
  void* context;
} tw_keeper;

// A message to send: `count` segments; or none at all, when `segments` is null.
typedef struct tw_payload {
  const tw_segment* segments;
  size_t count;
  const tw_owner* owners;   // one for each segment; null: none is lent
  const tw_keeper* keeper;  // null: the function waits until the peer has taken the memory
} tw_payload;

typedef struct tw_pairs {
  const tw_pair* pairs;
  size_t count;
} tw_pairs;

typedef void (*tw_visit_pair)(void* context, const tw_pair* pair);

// ---- facts and counters ----

enum { TW_NUMBER = 0, TW_TEXT = 1, TW_RECORD = 2, TW_LIST = 3 };

// A value; of a record or a list those within. Good as long as the visit.
typedef struct tw_fact {
  const char* name;  // in a record; else empty
  int32_t kind;
  int64_t number;
  const char* text;
  const struct tw_fact* facts;
  size_t count;
} tw_fact;
typedef void (*tw_visit_fact)(void* context, const tw_fact* fact);

enum { TW_COUNTER = 0, TW_GAUGE = 1 };  // only ever grows; may fall, too

typedef struct tw_label {
  const char* name;  // null: none
  const char* value;
} tw_label;

// What a number means. Several share a metric if they differ in their labels.
typedef struct tw_counter {
  const char* name;    // in statistics
  const char* metric;  // ends with the unit where that is bytes
  const char* unit;
  const char* help;  // of the metric: a sentence
  int32_t kind;
  int32_t by_size;  // the metric has one for each tw_size_class, of which this is the sum
  tw_label labels[2];
} tw_counter;

// Of each link, and of the memory of this process. Static; values come in the same order.
const tw_counter* tw_link_counters(size_t* count);
const tw_counter* tw_memory_counters(size_t* count);

typedef struct tw_size_class {
  uint64_t upto;  // bytes of payload, at most
  uint64_t messages_sent, bytes_sent, messages_received, bytes_received;
} tw_size_class;

// Of one link. Good as long as the visit.
typedef struct tw_statistics {
  const char* transport;
  const char* peer;
  const char* crowded_reason;   // why a segment was last pushed for want of room; null: none was
  const char* unshared_reason;  // why memory of the arena was last pushed; null: none was
  const uint64_t* values;
  size_t count;
  const tw_size_class* classes;  // the last one without a limit: UINT64_MAX
  size_t class_count;
} tw_statistics;
typedef void (*tw_visit_statistics)(void* context, const tw_statistics* statistics);

// ---- process ----

const char* tw_version(void);
// What this host offers: one record.
void tw_host(tw_visit_fact visit, void* context);
// Joins the runtime's threads. Nothing of the runtime may be used afterwards. For the end of the
// interpreter.
void tw_shut_down(void);

// ---- settings ----

// A setting. Good as long as the visit.
typedef struct tw_setting {
  const char* variable;  // of the environment
  const char* name;      // among the settings in force; empty: whoever needs it reads it anew
  const char* alias_of;  // the variable that this one is another name of; null: it is none
  const char* fallback;  // what it is where nobody sets it
  const char* permitted;
  const char* help;  // what for
} tw_setting;
typedef void (*tw_visit_setting)(void* context, const tw_setting* setting);

// All that there are.
void tw_each_setting(tw_visit_setting visit, void* context);
// Those in force: one record of numbers and texts. INVALID_ARGUMENT: one is wrong.
int tw_settings(tw_visit_fact visit, void* context, tw_status* status);
// What one holds now, as it is meant; empty: it is not set. INVALID_ARGUMENT: it is wrong.
// NOT_FOUND: it is no setting. OUT_OF_RANGE: `room` is too small.
int tw_read_setting(const char* variable, char* value, size_t room, tw_status* status);

// ---- traces ----

// A protocol step of a link: MESSAGE, MAP, EAGER, DATA, RTS, READ, READ_DONE, FIN, CREDIT,
// ABORT, GOAWAY, SEND (docs/trace.md).
typedef struct tw_trace_event {
  int64_t time_ns;   // of CLOCK_MONOTONIC
  const char* step;  // static
  int32_t sent;      // by this end; 0: received
  uint32_t segment;
  uint64_t stream, message, bytes, id;
} tw_trace_event;
typedef void (*tw_visit_event)(void* context, const tw_trace_event* event);

// Has all links, those of now and those to come, forget what they have noted and keep their last
// `events` steps from now on; 0: none.
int tw_trace(size_t events, tw_status* status);

// ---- audit ----

// What peers did wrong. kind and reason are among a few fixed words (docs/metrics.md).
typedef void (*tw_visit_incident)(void* context, const char* kind, const char* reason,
                                  uint64_t count);
// Visits each reason with the number of its incidents in this process.
int tw_incidents(tw_visit_incident visit, void* context, tw_status* status);

// A line for a log. Of each reason, only some incidents get one.
typedef struct tw_audit_line {
  const char* kind;    // static
  const char* reason;  // static
  uint64_t more;       // incidents of this reason without a line since the last one
  char peer[256];      // an address as gRPC writes it
  char details[1020];  // a sentence; bytes in it may be of a peer's choice
} tw_audit_line;
// The next line, for one thread. DEADLINE_EXCEEDED; UNAVAILABLE once closed and all is told.
int tw_audit_next(const tw_wait* wait, tw_audit_line* out, tw_status* status);
void tw_audit_close(void);

// ---- memory ----

// Writable arena memory, aligned to 4096 bytes from one page up, else to 64. RESOURCE_EXHAUSTED
// when the arena stays full.
int tw_allocate(size_t size, const tw_wait* wait, tw_buffer** out, tw_status* status);
// Marks the arena block around [data, data + size) as published. 0: the bytes do not lie in the
// arena.
int tw_publish(const void* data, size_t size);
int tw_published(const void* data, size_t size);
// The values of tw_memory_counters, as many as there is room for. Their number; 0: no memory.
size_t tw_arena(uint64_t* values, size_t room);
// For allocators: a block of at least a page without a handle, aligned to 4096 bytes. Null: the
// arena has no room now, and somebody else should serve; for more than an eighth of the arena also
// when less than an eighth would be left, which is kept for smaller blocks.
void* tw_arena_allocate(size_t size);
// Whether [data, data + size) lies in one live block of the arena.
int tw_arena_holds(const void* data, size_t size);
// Gives such a block back; peers that have it on lease keep it. 0: it is none.
int tw_arena_free(void* data);

// As memcpy, at the speed of the machine where there is much to copy.
void tw_copy(void* to, const void* from, size_t size);

void* tw_buffer_data(const tw_buffer* buffer);
size_t tw_buffer_size(const tw_buffer* buffer);
int tw_buffer_readonly(const tw_buffer* buffer);
int tw_buffer_leased(const tw_buffer* buffer);
// Call before code of the user can reach a received buffer's bytes (it may write to them in spite
// of everything).
void tw_buffer_expose(tw_buffer* buffer);
// Ahead of code that will write: no other buffer shows its writes. The bytes may move, so nobody
// may hold an address that tw_buffer_data gave before. RESOURCE_EXHAUSTED: no mapping is to be had.
int tw_buffer_separate(tw_buffer* buffer, tw_status* status);
void tw_buffer_release(tw_buffer* buffer);

size_t tw_message_count(const tw_message* message);
size_t tw_message_size(const tw_message* message);  // bytes of all segments
tw_segment tw_message_segment(const tw_message* message, size_t index);
// All segments, one after the other, at the speed of the machine. `to`: tw_message_size bytes that
// nothing has been written to yet, so that it gets huge pages where the system has them.
void tw_message_copy(const tw_message* message, void* to);
// Whether a segment lies in the sender's memory.
int tw_message_leased(const tw_message* message);

// Posts memory for a message of one segment that is received by copy and has exactly `size` bytes,
// TW_SMALLEST_POSTED at least, over whatever link: nothing else has to touch it then. Nobody else
// may meanwhile. A few can be posted; the oldest go, and what nobody needed for a minute. `owner`
// is told of each that goes, perhaps before this returns.
#define TW_SMALLEST_POSTED (4u << 20)
void tw_post(void* data, size_t size, const tw_owner* owner);
// The context of the owner whose memory the message has been received into, and who has that memory
// back; from then on the message may only be released. Null: it lies somewhere else.
void* tw_message_posted(tw_message* message);
// A new reference; null: no memory.
tw_buffer* tw_message_buffer(tw_message* message, size_t index);
void tw_message_release(tw_message* message);

// Null counts as empty.
void tw_metadata_each(const tw_metadata* metadata, tw_visit_pair visit, void* context);
void tw_metadata_release(tw_metadata* metadata);

// ---- bootstrap ----

enum { TW_HELLO_SIZE = 96, TW_SESSION_SIZE = 16, TW_SECRET_SIZE = 32, TW_INSTANCE_SIZE = 16 };

int tw_hello(uint8_t out[TW_HELLO_SIZE], tw_status* status);

typedef struct tw_peer_facts {
  uint16_t version;   // the highest that both speak
  int32_t same_host;  // the same kernel: shared memory can work
  int32_t same_user;
  int32_t pid;
} tw_peer_facts;
// INVALID_ARGUMENT, FAILED_PRECONDITION.
int tw_parse_hello(const void* hello, size_t size, tw_peer_facts* out, tw_status* status);

// What a server tells a process that it admits, for a bootstrap that carries bytes.
typedef struct tw_welcome {
  uint8_t hello[TW_HELLO_SIZE];  // the server's own
  uint8_t instance[TW_INSTANCE_SIZE];
  uint8_t session[TW_SESSION_SIZE];
  uint8_t secret[TW_SECRET_SIZE];
} tw_welcome;
enum { TW_WELCOME_ROOM = 16616 };  // no welcome is longer

// With the addresses of the server, best first. `out` has TW_WELCOME_ROOM bytes, of which *size are
// written. INVALID_ARGUMENT: too many addresses, or one is none.
int tw_encode_welcome(const tw_welcome* welcome, const char* const* addresses, size_t count,
                      void* out, size_t* size, tw_status* status);
// Visits the addresses, best first, unless it fails. INVALID_ARGUMENT; FAILED_PRECONDITION: it is
// of another version.
typedef void (*tw_visit_address)(void* context, const char* address);
int tw_decode_welcome(const void* bytes, size_t size, tw_welcome* out, tw_visit_address visit,
                      void* context, tw_status* status);

// ---- routes ----

// The way to one peer: whether what goes there takes a link, waits for one, or takes the fallback
// (gRPC), and when the next attempt to make a link begins. Thread-safe. docs/architecture.md has
// its states.
typedef struct tw_route tw_route;

typedef struct tw_policy {
  const char* required;          // the only way that is permitted; null: any
  const char* const* forbidden;  // names of transports, "grpc" among them
  size_t count;
  const char* origin;  // what the user wrote to require it, for error texts
} tw_policy;

typedef void (*tw_visit_policy)(void* context, const tw_policy* policy);

// What the user permits. `transport`: a way, or auto; `forbid`: names with commas between. Where
// one is null or empty, TENSORWIRE_TRANSPORT or TENSORWIRE_FORBID decides, as it is now.
// INVALID_ARGUMENT: an unknown name, or no way is left. FAILED_PRECONDITION: the same, and a
// variable has part in that.
int tw_choose_policy(const char* transport, const char* forbid, tw_visit_policy visit,
                     void* context, tw_status* status);

// Between attempts, ns.
typedef struct tw_pauses {
  int64_t first, longest;
  int64_t longest_without;                       // a fallback
  int64_t first_of_breaker, longest_of_breaker;  // of a transport whose links fail
} tw_pauses;

// pauses: null for the usual ones.
int tw_route_create(const tw_policy* policy, const tw_pauses* pauses, tw_route** out,
                    tw_status* status);
void tw_route_release(tw_route* route);

enum {
  TW_USE_LINK = 0,
  TW_USE_ATTEMPT = 1,  // somebody makes one: its end is worth waiting for
  TW_USE_FALLBACK = 2,
  TW_USE_NOTHING = 3,  // there is no way now
};
typedef struct tw_advice {
  int32_t use;
  int32_t begin;     // make an attempt now, and say what came of it: nobody else does
  int64_t retry_ns;  // the time until the next attempt may begin; INT64_MAX: never
} tw_advice;
// For whoever needs the way.
tw_advice tw_route_consult(tw_route* route);

// How long to wait after so many failures in a row, ns, where the caller counts them.
int64_t tw_route_pause(tw_route* route, int failures);

// What a peer has told of itself (tw_parse_hello), and where it can be reached.
typedef struct tw_offer {
  int32_t same_host, same_user;
  const char* const* addresses;  // <transport>:<where>
  size_t count;
} tw_offer;
// What the transport lacks on this host; 0: nothing.
typedef int (*tw_route_lacks)(void* context, const char* transport, tw_status* why);
// Makes a link to an address of the offer, and keeps it. FAILED_PRECONDITION: the next time would
// come to the same.
typedef int (*tw_route_connect)(void* context, const char* transport, const char* address,
                                tw_status* why);
// Why a transport that is better than the link's is not the one; `tried`: connecting failed.
typedef void (*tw_visit_reason)(void* context, const char* transport, const char* why,
                                int32_t tried);
// Goes through the offer, the best transport first, as long as `connect` takes; while there is a
// link, only through what is better. TW_OK: a link was made. UNAVAILABLE, or FAILED_PRECONDITION
// when another attempt would come to the same: `visit` has been told why not. Then tell the route
// what came of the attempt. lacks: null to have the transports asked.
int tw_route_attempt(tw_route* route, const tw_offer* offer, tw_route_lacks lacks,
                     tw_route_connect connect, tw_visit_reason visit, void* context,
                     tw_status* status);

void tw_route_linked(tw_route* route, const char* transport);
enum {
  TW_ATTEMPT_WITHDRAWN = 0,   // it was not made: the next one may begin at once
  TW_ATTEMPT_REFUSED = 1,     // the peer refused who asked, and may take others
  TW_ATTEMPT_UNANSWERED = 2,  // the peer did not answer
  TW_ATTEMPT_DECLINED = 3,    // it answered that there can be no link, as things are there
  TW_ATTEMPT_FINAL = 4,       // no other attempt is worth making
  TW_ATTEMPT_UNREACHED = 5,   // no link could be made
};
void tw_route_failed(tw_route* route, int32_t failure);
// The link has ended.
void tw_route_lost(tw_route* route, const char* why);
// Attempts that have failed in a row.
int tw_route_failures(tw_route* route);
// The time until a better transport than the link's may be had, ns: then consulting the route says
// so. INT64_MAX: the link's is the best, or none will be.
int64_t tw_route_better_in(tw_route* route);
// A transport that is passed over from now on because its links fail, once for each time. 0: none.
typedef struct tw_passed_over {
  char transport[16];
  int64_t left_ns;
  char why[1024];
} tw_passed_over;
int tw_route_news(tw_route* route, tw_passed_over* out);

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

// ---- server ----

int tw_server_create(int64_t max_message, tw_server** out, tw_status* status);
void tw_server_instance(const tw_server* server, uint8_t out[TW_INSTANCE_SIZE]);
int tw_server_listen_tcp(tw_server* server, const char* host, int port, int* bound,
                         tw_status* status);
int tw_server_listen_local(tw_server* server, char* path, size_t room, tw_status* status);
// Invites the process that sent `hello` to make so many connections within the time to live. A full
// table gives up the oldest invitation of the source that has the most. source: who asks, as far as
// can be told, an address or "".
int tw_server_admit(tw_server* server, const void* hello, size_t hello_size, const char* source,
                    int connections, int64_t ttl_ns, uint8_t session[TW_SESSION_SIZE],
                    uint8_t secret[TW_SECRET_SIZE], tw_status* status);
// What the bootstrap knows of the session's client, before that hears of it: where it came from
// (tw_call_peer) and its program (tw_call_agent).
int tw_server_introduce(tw_server* server, const uint8_t session[TW_SESSION_SIZE],
                        const char* caller, const char* agent, tw_status* status);
// Up to `room` new calls in `calls`, their number in *count: 0 on timeout. Also drives all links
// that nobody else drives, so one thread should always be in here. UNAVAILABLE once the server is
// closed.
int tw_server_next(tw_server* server, const tw_wait* wait, tw_server_call** calls, size_t room,
                   size_t* count, tw_status* status);
void tw_server_refuse(tw_server* server);
size_t tw_server_active(const tw_server* server);
// Visits the peers that are alive, whichever end has made their links. Good as long as the visit:
// tw_peer_share makes a reference.
typedef void (*tw_visit_peer)(void* context, tw_peer* peer);
void tw_server_peers(tw_server* server, tw_visit_peer visit, void* context);
// Puts the token into the queue when a peer next comes or goes, or the server is closed.
// UNAVAILABLE, RESOURCE_EXHAUSTED: it never comes.
int tw_server_notify_peers(tw_server* server, tw_events* queue, uint64_t token, tw_status* status);
// Visits the statistics of each link.
void tw_server_stats(tw_server* server, tw_visit_statistics visit, void* context);
// Visits what each link has kept; `begin` is called ahead of each, with all that it has noted.
typedef void (*tw_begin_trace)(void* context, const char* transport, const char* peer,
                               uint64_t total);
void tw_server_trace(const tw_server* server, tw_begin_trace begin, tw_visit_event visit,
                     void* context);
void tw_server_close(tw_server* server);
void tw_server_release(tw_server* server);

// ---- the table ----

// For plugins that are built on the user's machine and must not link to a runtime of their own (two
// would be two arenas). A plugin refuses a table of another version than the one it was built for,
// or a smaller one. The version changes with each change of a function or type that is in use;
// entries are only added at the end.
enum { TW_TABLE_VERSION = 9 };

// All functions, by name and in the order of the table.
#define TW_TABLE(ENTRY)                              \
  ENTRY(runtime_version, tw_version)                 \
  ENTRY(settings, tw_settings)                       \
  ENTRY(arena, tw_arena)                             \
  ENTRY(arena_allocate, tw_arena_allocate)           \
  ENTRY(arena_holds, tw_arena_holds)                 \
  ENTRY(arena_free, tw_arena_free)                   \
  ENTRY(copy, tw_copy)                               \
  ENTRY(buffer_data, tw_buffer_data)                 \
  ENTRY(buffer_size, tw_buffer_size)                 \
  ENTRY(buffer_leased, tw_buffer_leased)             \
  ENTRY(buffer_expose, tw_buffer_expose)             \
  ENTRY(buffer_release, tw_buffer_release)           \
  ENTRY(message_count, tw_message_count)             \
  ENTRY(message_segment, tw_message_segment)         \
  ENTRY(message_buffer, tw_message_buffer)           \
  ENTRY(message_release, tw_message_release)         \
  ENTRY(metadata_each, tw_metadata_each)             \
  ENTRY(metadata_release, tw_metadata_release)       \
  ENTRY(hello, tw_hello)                             \
  ENTRY(parse_hello, tw_parse_hello)                 \
  ENTRY(connect, tw_connect)                         \
  ENTRY(peer_transport, tw_peer_transport)           \
  ENTRY(peer_address, tw_peer_address)               \
  ENTRY(peer_alive, tw_peer_alive)                   \
  ENTRY(peer_death, tw_peer_death)                   \
  ENTRY(peer_stats, tw_peer_stats)                   \
  ENTRY(peer_close, tw_peer_close)                   \
  ENTRY(link_release, tw_link_release)               \
  ENTRY(peer_start, tw_peer_start)                   \
  ENTRY(call_take, tw_call_take)                     \
  ENTRY(call_notify, tw_call_notify)                 \
  ENTRY(call_release, tw_call_release)               \
  ENTRY(call_outcome, tw_call_outcome)               \
  ENTRY(call_cancel, tw_call_cancel)                 \
  ENTRY(call_method, tw_call_method)                 \
  ENTRY(call_metadata, tw_call_metadata)             \
  ENTRY(call_peer, tw_call_peer)                     \
  ENTRY(call_transport, tw_call_transport)           \
  ENTRY(call_active, tw_call_active)                 \
  ENTRY(call_finish, tw_call_finish)                 \
  ENTRY(events_create, tw_events_create)             \
  ENTRY(events_wait, tw_events_wait)                 \
  ENTRY(events_push, tw_events_push)                 \
  ENTRY(events_close, tw_events_close)               \
  ENTRY(events_release, tw_events_release)           \
  ENTRY(server_create, tw_server_create)             \
  ENTRY(server_instance, tw_server_instance)         \
  ENTRY(server_listen_tcp, tw_server_listen_tcp)     \
  ENTRY(server_listen_local, tw_server_listen_local) \
  ENTRY(server_admit, tw_server_admit)               \
  ENTRY(server_next, tw_server_next)                 \
  ENTRY(server_stats, tw_server_stats)               \
  ENTRY(server_close, tw_server_close)               \
  ENTRY(server_release, tw_server_release)           \
  ENTRY(host, tw_host)                               \
  ENTRY(buffer_separate, tw_buffer_separate)         \
  ENTRY(shut_down, tw_shut_down)                     \
  ENTRY(trace, tw_trace)                             \
  ENTRY(incidents, tw_incidents)                     \
  ENTRY(audit_next, tw_audit_next)                   \
  ENTRY(audit_close, tw_audit_close)                 \
  ENTRY(allocate, tw_allocate)                       \
  ENTRY(publish, tw_publish)                         \
  ENTRY(published, tw_published)                     \
  ENTRY(buffer_readonly, tw_buffer_readonly)         \
  ENTRY(message_size, tw_message_size)               \
  ENTRY(message_copy, tw_message_copy)               \
  ENTRY(message_leased, tw_message_leased)           \
  ENTRY(post, tw_post)                               \
  ENTRY(message_posted, tw_message_posted)           \
  ENTRY(peer_trace, tw_peer_trace)                   \
  ENTRY(peer_unary, tw_peer_unary)                   \
  ENTRY(call_receive, tw_call_receive)               \
  ENTRY(call_sendable, tw_call_sendable)             \
  ENTRY(call_ended, tw_call_ended)                   \
  ENTRY(call_time_left, tw_call_time_left)           \
  ENTRY(call_send, tw_call_send)                     \
  ENTRY(call_end_send, tw_call_end_send)             \
  ENTRY(call_initial, tw_call_initial)               \
  ENTRY(call_agent, tw_call_agent)                   \
  ENTRY(call_drop_if_over, tw_call_drop_if_over)     \
  ENTRY(call_send_initial, tw_call_send_initial)     \
  ENTRY(call_reply, tw_call_reply)                   \
  ENTRY(peer_expose, tw_peer_expose)                 \
  ENTRY(peer_conceal, tw_peer_conceal)               \
  ENTRY(peer_region, tw_peer_region)                 \
  ENTRY(peer_access, tw_peer_access)                 \
  ENTRY(access_wait, tw_access_wait)                 \
  ENTRY(access_ended, tw_access_ended)               \
  ENTRY(access_release, tw_access_release)           \
  ENTRY(peer_immediate, tw_peer_immediate)           \
  ENTRY(peer_send, tw_peer_send)                     \
  ENTRY(peer_receive, tw_peer_receive)               \
  ENTRY(receive_wait, tw_receive_wait)               \
  ENTRY(receive_ended, tw_receive_ended)             \
  ENTRY(receive_cancel, tw_receive_cancel)           \
  ENTRY(receive_release, tw_receive_release)         \
  ENTRY(server_introduce, tw_server_introduce)       \
  ENTRY(server_refuse, tw_server_refuse)             \
  ENTRY(server_active, tw_server_active)             \
  ENTRY(server_trace, tw_server_trace)               \
  ENTRY(encode_welcome, tw_encode_welcome)           \
  ENTRY(decode_welcome, tw_decode_welcome)           \
  ENTRY(events_descriptor, tw_events_descriptor)     \
  ENTRY(route_create, tw_route_create)               \
  ENTRY(route_release, tw_route_release)             \
  ENTRY(route_consult, tw_route_consult)             \
  ENTRY(route_pause, tw_route_pause)                 \
  ENTRY(route_attempt, tw_route_attempt)             \
  ENTRY(route_linked, tw_route_linked)               \
  ENTRY(route_failed, tw_route_failed)               \
  ENTRY(route_lost, tw_route_lost)                   \
  ENTRY(route_failures, tw_route_failures)           \
  ENTRY(route_better_in, tw_route_better_in)         \
  ENTRY(route_news, tw_route_news)                   \
  ENTRY(link_counters, tw_link_counters)             \
  ENTRY(memory_counters, tw_memory_counters)         \
  ENTRY(each_setting, tw_each_setting)               \
  ENTRY(read_setting, tw_read_setting)               \
  ENTRY(choose_policy, tw_choose_policy)             \
  ENTRY(call_process, tw_call_process)               \
  ENTRY(peer_share, tw_peer_share)                   \
  ENTRY(peer_release, tw_peer_release)               \
  ENTRY(peer_caller, tw_peer_caller)                 \
  ENTRY(peer_agent, tw_peer_agent)                   \
  ENTRY(peer_pid, tw_peer_pid)                       \
  ENTRY(peer_notify_gone, tw_peer_notify_gone)       \
  ENTRY(server_peers, tw_server_peers)               \
  ENTRY(server_notify_peers, tw_server_notify_peers)

typedef struct tw_table {
  uint32_t version;
  uint32_t size;  // bytes of the table
#define TW_TABLE_FIELD(name, function) __typeof__(&function) name;
  TW_TABLE(TW_TABLE_FIELD)
#undef TW_TABLE_FIELD
} tw_table;

const tw_table* tw_get_table(void);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_H
