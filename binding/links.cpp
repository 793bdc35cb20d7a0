// SPDX-License-Identifier: Apache-2.0
// Links at the client, and how one is made: Hellos, invitations, connecting.
#include "binding.h"

namespace binding {

namespace {

struct Link {
  tw_link* handle;
  explicit Link(tw_link* h) : handle(h) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() { tw_link_release(handle); }

  nb::object unary(nb::handle method, nb::handle request, nb::handle timeout, nb::handle metadata,
                   bool raw) {
    Py_ssize_t size = 0;
    const char* name = PyUnicode_AsUTF8AndSize(method.ptr(), &size);
    if (!name) throw nb::python_error();
    Payload payload(request);
    const Pairs pairs(metadata);
    const tw_wait wait = wait_for(timeout);
    tw_reply reply{};
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_link_unary(handle, name, static_cast<size_t>(size), pairs.get(), payload.get(),
                             &wait, &reply, &status);
    }
    MessageHandle message{reply.message};
    const Metadata initial_metadata{reply.initial};
    const Metadata trailing_metadata{reply.trailing};
    nb::object initial = metadata_or_none(initial_metadata);
    nb::object trailing = metadata_or_none(trailing_metadata);
    if (result == TW_INTERRUPTED) throw nb::python_error();
    nb::object payload_out = message.handle ? received(message.handle, raw) : nb::borrow(Py_None);
    nb::object code = made(PyLong_FromLong(result));
    nb::object details = decoded(status.details);
    return made(PyTuple_Pack(5, code.ptr(), details.ptr(), payload_out.ptr(), initial.ptr(),
                             trailing.ptr()));
  }

  nb::object start(nb::handle method, nb::handle timeout, nb::handle metadata, nb::handle request,
                   bool end, bool until_read) {
    Py_ssize_t size = 0;
    const char* name = PyUnicode_AsUTF8AndSize(method.ptr(), &size);
    if (!name) throw nb::python_error();
    Payload payload(request);
    const Pairs pairs(metadata);
    const tw_wait wait = wait_for(timeout);
    const int flags = (end ? TW_HALF_CLOSE : 0) | (until_read ? TW_UNTIL_READ : 0);
    tw_client_call* call = nullptr;
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_link_start(handle, name, static_cast<size_t>(size), pairs.get(), payload.get(),
                             flags, &wait, &call, &status);
    }
    check(result, status);
    return client_call(call);
  }

  nb::object stats() {
    nb::dict dict;
    tw_link_stats(handle, visit_stats, &dict);
    return dict;
  }
  nb::object trace() {
    nb::list events;
    const uint64_t total = tw_link_trace(handle, visit_event, events.ptr());
    return nb::make_tuple(total, events);
  }
  std::string death() const {
    tw_status why{};
    tw_link_death(handle, &why);
    return why.details;
  }
};

struct Peer {
  tw_peer_facts facts;
};

}  // namespace

void bind_links(nb::module_& m) {
  m.def("hello", [] {
    uint8_t bytes[TW_HELLO_SIZE];
    tw_status status{};
    check(tw_hello(bytes, &status), status);
    return as_bytes(bytes, sizeof bytes);
  });
  nb::class_<Peer>(m, "Peer")
      .def_prop_ro("version", [](const Peer& p) { return p.facts.version; })
      .def_prop_ro("same_host", [](const Peer& p) { return p.facts.same_host != 0; })
      .def_prop_ro("same_user", [](const Peer& p) { return p.facts.same_user != 0; })
      .def_prop_ro("pid", [](const Peer& p) { return p.facts.pid; });
  m.def("parse_hello", [](const nb::bytes& hello) {
    Peer peer{};
    tw_status status{};
    check(tw_parse_hello(hello.c_str(), hello.size(), &peer.facts, &status), status);
    return peer;
  });

  m.def("link_counters", [] {
    size_t count;
    const tw_counter* const counters = tw_link_counters(&count);
    return declared(counters, count);
  });
  nb::class_<Link>(m, "Link")
      .def_prop_ro("transport", [](const Link& l) { return tw_link_transport(l.handle); })
      .def_prop_ro("peer", [](const Link& l) { return tw_link_peer(l.handle); })
      .def_prop_ro("alive", [](const Link& l) { return tw_link_alive(l.handle) != 0; })
      .def_prop_ro("death", &Link::death)
      .def("unary", &Link::unary, nb::arg("method"), nb::arg("request"), nb::arg("timeout").none(),
           nb::arg("metadata").none(), nb::arg("raw"))
      .def("start", &Link::start, nb::arg("method"), nb::arg("timeout").none(),
           nb::arg("metadata").none(), nb::arg("request").none() = nb::none(),
           nb::arg("end") = false, nb::arg("until_read") = false)
      .def("stats", &Link::stats)
      .def("remote", [](Link& l) { return remote(tw_link_remote(l.handle)); })
      .def("trace", &Link::trace)
      .def("close", [](Link& l) {
        const NoGil nogil;
        tw_link_close(l.handle);
      });

  m.def(
      "connect",
      [](const std::string& address, const nb::bytes& session, const nb::bytes& secret,
         const nb::bytes& instance, const nb::bytes& peer_hello, double timeout,
         int64_t max_message) {
        const tw_invitation invitation{address.c_str(),
                                       exactly<TW_SESSION_SIZE>(session, "session"),
                                       exactly<TW_SECRET_SIZE>(secret, "secret"),
                                       exactly<TW_INSTANCE_SIZE>(instance, "instance"),
                                       peer_hello.c_str(),
                                       peer_hello.size(),
                                       max_message};
        tw_link* link = nullptr;
        tw_status status{};
        int result;
        {
          const NoGil nogil;
          result = tw_connect(&invitation, nanos(timeout), &link, &status);
        }
        check(result, status);
        return new Link(link);
      },
      nb::arg("address"), nb::arg("session"), nb::arg("secret"), nb::arg("instance"),
      nb::arg("peer_hello"), nb::arg("timeout"), nb::arg("max_message") = -1,
      nb::rv_policy::take_ownership);
}

}  // namespace binding
