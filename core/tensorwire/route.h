// SPDX-License-Identifier: Apache-2.0
// The C ABI: how a peer is asked for a link, and when and by which transport one is made.
#ifndef TENSORWIRE_ROUTE_H
#define TENSORWIRE_ROUTE_H

#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

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
// (gRPC), and when the next attempt to make a link begins. Thread-safe. core/route/route.h draws
// its states.
typedef struct tw_route tw_route;

typedef struct tw_policy {
  const char* required;          // the only way that is permitted; null: any
  const char* const* forbidden;  // names of transports, "grpc" among them
  size_t count;
  const char* origin;  // what the user wrote to require it, for error texts
} tw_policy;

// A way that a policy does not permit.
typedef struct tw_refusal {
  const char* way;
  const char* why;
} tw_refusal;
typedef void (*tw_visit_policy)(void* context, const tw_policy* policy, const tw_refusal* refusals,
                                size_t count);

// What the user permits, and each way that is not. `transport`: a way, or auto; `forbid`: names
// with commas between. Where one is null or empty, TENSORWIRE_TRANSPORT or TENSORWIRE_FORBID
// decides, as it is now. INVALID_ARGUMENT: an unknown name, or no way is left. FAILED_PRECONDITION:
// the same, and a variable has part in that.
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
// 0: there is no such TW_ATTEMPT_*, and the attempt goes on.
int tw_route_failed(tw_route* route, int32_t failure);
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

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_ROUTE_H
