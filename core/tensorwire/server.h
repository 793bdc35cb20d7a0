// SPDX-License-Identifier: Apache-2.0
// The C ABI: servers.
#ifndef TENSORWIRE_SERVER_H
#define TENSORWIRE_SERVER_H

#include "tensorwire/process.h"
#include "tensorwire/route.h"

#ifdef __cplusplus
extern "C" {
#endif

int tw_server_create(int64_t max_message, tw_server** out, tw_status* status);
// Bytes of replies that may wait for one client, instead of as many as the settings say. For
// servers whose replies are memory that is held anyway; negative: as many as there are. Statuses
// without a payload are cut short by the settings nevertheless.
void tw_server_limit_unread(tw_server* server, int64_t bytes);
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

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_SERVER_H
