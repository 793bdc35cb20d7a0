// SPDX-License-Identifier: Apache-2.0
// The C ABI: handles, results, and what goes into a message.
#ifndef TENSORWIRE_VALUES_H
#define TENSORWIRE_VALUES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TW_OK = 0, TW_INTERRUPTED = -1 };

typedef struct tw_buffer tw_buffer;      // a run of bytes: received, or of this process's arena
typedef struct tw_quota tw_quota;        // what readers of a publication may have on lease
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
typedef struct tw_batch tw_batch;              // accesses that are begun together, again and again
typedef struct tw_shared tw_shared;            // memory that is made to be accessed by peers
typedef struct tw_receive tw_receive;          // a tagged message that is asked for
typedef struct tw_group tw_group;              // ranks that run collectives together

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

// Written with every result but TW_OK and TW_INTERRUPTED, and by what says so. Whoever does not
// want to know gives a null one.
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

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_VALUES_H
