// SPDX-License-Identifier: Apache-2.0
// The C ABI: servers.
#include <limits>

#include "abi/abi.h"

using namespace tw;
using namespace tw::abi;

int tw_server_create(int64_t max_message, tw_server** out, tw_status* status) try {
  auto made = Server::create(limit_of(max_message));
  if (!made) return report(status, made.status());
  *out = reinterpret_cast<tw_server*>(made->leak());
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

void tw_server_limit_unread(tw_server* server, int64_t bytes) {
  of(server)->limit_unread(limit_of(bytes).value_or(std::numeric_limits<size_t>::max()));
}

void tw_server_instance(const tw_server* server, uint8_t out[TW_INSTANCE_SIZE]) {
  std::memcpy(out, of(server)->instance().data(), TW_INSTANCE_SIZE);
}

int tw_server_listen_tcp(tw_server* server, const char* host, int port, int* bound,
                         tw_status* status) try {
  if (of(server)->inherited()) return inherited(status, "server");
  auto opened = of(server)->listener().listen_tcp(host, port);
  if (!opened) return report(status, opened.status());
  *bound = *opened;
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_server_listen_local(tw_server* server, char* path, size_t room, tw_status* status) try {
  if (of(server)->inherited()) return inherited(status, "server");
  auto opened = of(server)->listener().listen_local();
  if (!opened) return report(status, opened.status());
  if (opened->size() >= room) return report(status, Code::kInternal, "no room for the path");
  std::memcpy(path, opened->c_str(), opened->size() + 1);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_server_admit(tw_server* server, const void* hello, size_t hello_size, const char* source,
                    int connections, int64_t ttl_ns, uint8_t session[TW_SESSION_SIZE],
                    uint8_t secret[TW_SECRET_SIZE], tw_status* status) try {
  if (of(server)->inherited()) return inherited(status, "server");
  auto theirs = wire::decode_hello({static_cast<const std::byte*>(hello), hello_size});
  if (!theirs) return report(status, theirs.status());
  auto ticket = of(server)->listener().admit(*theirs, connections, ttl_ns, source);
  if (!ticket) return report(status, ticket.status());
  std::memcpy(session, ticket->session.data(), TW_SESSION_SIZE);
  std::memcpy(secret, ticket->secret.bytes().data(), TW_SECRET_SIZE);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_server_introduce(tw_server* server, const uint8_t session[TW_SESSION_SIZE],
                        const char* caller, const char* agent, tw_status* status) try {
  if (of(server)->inherited()) return inherited(status, "server");
  wire::SessionId id;
  std::memcpy(id.data(), session, TW_SESSION_SIZE);
  of(server)->listener().introduce(id, caller, agent);
  return TW_OK;
} catch (const std::bad_alloc&) {
  return no_memory(status);
}

int tw_server_next(tw_server* server, const tw_wait* wait, tw_server_call** calls, size_t room,
                   size_t* count, tw_status* status) try {
  *count = 0;
  if (of(server)->inherited()) return inherited(status, "server");
  std::vector<Ref<ServerCall>> fresh;
  const Ended next = await_calls(*of(server), fresh, room, wait_of(wait));
  if (next == Ended::kInterrupted) return TW_INTERRUPTED;
  if (next == Ended::kClosed) return report(status, Code::kUnavailable, "the server is closed");
  for (auto& call : fresh) calls[(*count)++] = handle(std::move(call));
  return TW_OK;
} catch (const std::bad_alloc&) {
  // Whoever calls this serves all peers: it looks again, as after a timeout.
  const Shortage shortage;
  return TW_OK;
}

void tw_server_refuse(tw_server* server) {
  if (!of(server)->inherited()) of(server)->refuse();
}
size_t tw_server_active(const tw_server* server) { return of(server)->active(); }
void tw_server_trace(const tw_server* server, tw_begin_trace begin, tw_visit_event visit,
                     void* context) try {
  if (of(server)->inherited()) return;
  of(server)->each_port([&](const ServerPort& port) {
    const Link& link = port.link();
    const Trace::Record record = link.trace();
    begin(context, link.transport(), link.peer().address.c_str(), record.total);
    visit_trace(record, visit, context);
  });
} catch (const std::bad_alloc&) {
  const Shortage shortage;
}
void tw_server_peers(tw_server* server, tw_visit_peer visit, void* context) {
  if (of(server)->inherited()) return;
  of(server)->each_peer([&](ServerPort& port) {
    visit(context, reinterpret_cast<tw_peer*>(static_cast<CallPort*>(&port)));
  });
}
int tw_server_notify_peers(tw_server* server, tw_events* queue, uint64_t token,
                           tw_status* status) try {
  if (of(server)->inherited()) return inherited(status, "server");
  const Status noted = of(server)->notify_peers(Ref<EventQueue>::share(of(queue)), token);
  return noted.ok() ? TW_OK : report(status, noted);
} catch (const std::bad_alloc&) {
  return no_memory(status);
}
void tw_server_close(tw_server* server) {
  if (!of(server)->inherited()) of(server)->close();
}
void tw_server_release(tw_server* server) {
  if (of(server)->inherited()) return;
  of(server)->close();
  of(server)->release();
}
