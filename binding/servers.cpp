// SPDX-License-Identifier: Apache-2.0
// The data plane of a server: where it listens, whom it admits, and the calls that come.
#include "binding.h"

namespace binding {

namespace {

nb::object next(Server& server, nb::object timeout) {
  const tw_wait wait = wait_for(timeout);
  // Few at a time: between two batches others get their turn.
  constexpr size_t kRoom = 16;
  tw_server_call* calls[kRoom];
  size_t count = 0;
  Untold status;
  const int result = without_gil(
      [&] { return tw_server_next(server.handle, &wait, calls, kRoom, &count, &status); });
  if (result == TW_CODE_UNAVAILABLE) return nb::none();
  check(result, status);
  ServerCallHandle handles[kRoom];
  for (size_t i = 0; i < count; ++i) handles[i].reset(calls[i]);
  nb::list list;
  for (size_t i = 0; i < count; ++i) list.append(server_call(std::move(handles[i])));
  return list;
}

nb::object server_stats(Server& server) {
  nb::list list;
  tw_server_stats(
      server.handle,
      [](void* context, const tw_statistics* found) {
        static_cast<nb::list*>(context)->append(dict_of(*found));
      },
      &list);
  return list;
}

nb::object server_traces(Server& server) {
  nb::list list;
  tw_server_trace(
      server.handle,
      [](void* context, const char* transport, const char* peer, uint64_t total) {
        const nb::tuple link = nb::make_tuple(transport, peer, total, nb::list());
        PyList_Append(static_cast<PyObject*>(context), link.ptr());
      },
      [](void* context, const tw_trace_event* event) {
        auto* const all = static_cast<PyObject*>(context);
        PyObject* const link = PyList_GetItem(all, PyList_Size(all) - 1);
        visit_event(PyTuple_GetItem(link, 3), event);
      },
      list.ptr());
  return list;
}

nb::object peers(Server& server) {
  std::vector<PeerHandle> found;
  tw_server_peers(
      server.handle,
      [](void* context, tw_peer* peer) {
        static_cast<std::vector<PeerHandle>*>(context)->emplace_back(tw_peer_share(peer));
      },
      &found);
  nb::list list;
  for (PeerHandle& peer : found) list.append(process(peer.release()));
  return list;
}

}  // namespace

void bind_servers(nb::module_& m) {
  nb::class_<Server>(m, "Server")
      .def(nb::init<int64_t>(), nb::arg("max_message") = -1)
      .def_prop_ro("instance",
                   [](const Server& s) {
                     uint8_t bytes[TW_INSTANCE_SIZE];
                     tw_server_instance(s.handle, bytes);
                     return as_bytes(bytes, sizeof bytes);
                   })
      .def(
          "listen_tcp",
          [](Server& s, const std::string& host, int port) {
            int bound = 0;
            Untold status;
            check(tw_server_listen_tcp(s.handle, host.c_str(), port, &bound, &status), status);
            return bound;
          },
          nb::arg("host"), nb::arg("port"))
      .def("listen_local",
           [](Server& s) {
             char path[256];
             Untold status;
             check(tw_server_listen_local(s.handle, path, sizeof path, &status), status);
             return std::string(path);
           })
      .def(
          "admit",
          [](Server& s, const nb::bytes& hello, int connections, double ttl,
             const std::string& source) {
            uint8_t session[TW_SESSION_SIZE], secret[TW_SECRET_SIZE];
            Untold status;
            check(tw_server_admit(s.handle, hello.c_str(), hello.size(), source.c_str(),
                                  connections, nanos(ttl), session, secret, &status),
                  status);
            return nb::make_tuple(as_bytes(session, sizeof session),
                                  as_bytes(secret, sizeof secret));
          },
          nb::arg("peer_hello"), nb::arg("connections"), nb::arg("ttl"), nb::arg("source") = "")
      .def(
          "introduce",
          [](Server& s, const nb::bytes& session, const std::string& caller,
             const std::string& agent) {
            Untold status;
            check(tw_server_introduce(s.handle, exactly<TW_SESSION_SIZE>(session, "session"),
                                      caller.c_str(), agent.c_str(), &status),
                  status);
          },
          nb::arg("session"), nb::arg("caller"), nb::arg("agent"))
      .def("next", next, nb::arg("timeout").none() = nb::none())
      .def("refuse",
           [](Server& s) {
             const NoGil nogil;
             tw_server_refuse(s.handle);
           })
      .def_prop_ro("active", [](const Server& s) { return tw_server_active(s.handle); })
      .def("close",
           [](Server& s) {
             const NoGil nogil;
             tw_server_close(s.handle);
           })
      .def("peers", peers)
      .def(
          "notify_peers",
          [](Server& s, Events& queue, uint64_t token) {
            Untold status;
            check(tw_server_notify_peers(s.handle, queue.handle, token, &status), status);
          },
          nb::arg("queue"), nb::arg("token"))
      .def("stats", server_stats)
      .def("traces", server_traces);
}

}  // namespace binding
