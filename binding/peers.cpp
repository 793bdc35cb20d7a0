// SPDX-License-Identifier: Apache-2.0
// Peers, and how a link to one is made: Hellos, invitations, connecting.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>

#include "binding.h"

namespace binding {

namespace {

// Memory of the caller's that the segments of a reply are wanted in.
class Places {
 public:
  explicit Places(nb::handle into) {
    if (into.is_none()) return;
    const auto items = nb::borrow<nb::sequence>(into);
    places_.reserve(nb::len(items));
    views_.all.reserve(places_.capacity());
    for (nb::handle item : items) {
      tw_place place{};
      if (!item.is_none()) {
        views_.all.push_back(exported(item, true));
        place = {views_.all.back().buf, static_cast<size_t>(views_.all.back().len)};
      }
      places_.push_back(place);
      items_.push_back(nb::borrow(item));
    }
  }

  const tw_place* data() const { return places_.data(); }
  size_t size() const { return places_.size(); }
  // Puts the caller's objects in place of the segments that were received into them.
  void substitute(nb::list segments, tw_message* message) const {
    for (size_t i = 0; i < std::min(places_.size(), tw_message_count(message)); ++i)
      if (places_[i].data && tw_message_segment(message, i).data == places_[i].data)
        segments[i] = items_[i];
  }

 private:
  struct Views {
    std::vector<Py_buffer> all;
    ~Views() {
      for (Py_buffer& view : all) PyBuffer_Release(&view);
    }
  };

  std::vector<tw_place> places_;
  Views views_;
  std::vector<nb::object> items_;
};

nb::object unary(Peer& peer, nb::handle method, nb::handle request, nb::handle timeout,
                 nb::handle metadata, bool raw, nb::handle into) {
  Py_ssize_t size = 0;
  const char* name = PyUnicode_AsUTF8AndSize(method.ptr(), &size);
  if (!name) throw nb::python_error();
  Payload payload(request);
  const Pairs pairs(metadata);
  const Places places(into);
  const tw_wait wait = wait_for(timeout);
  tw_reply reply{};
  Untold status;
  const int result = without_gil([&] {
    return tw_peer_unary_into(peer.handle, name, static_cast<size_t>(size), pairs.get(),
                              payload.get(), places.data(), places.size(), &wait, &reply, &status);
  });
  MessageHandle message{reply.message};
  const Metadata initial_metadata{reply.initial};
  const Metadata trailing_metadata{reply.trailing};
  const ClientCallHandle cut{reply.cut};
  nb::object initial = metadata_or_none(initial_metadata);
  nb::object trailing = metadata_or_none(trailing_metadata);
  if (result == TW_INTERRUPTED) throw nb::python_error();
  nb::object payload_out =
      message.handle ? received(message.handle, raw || places.size() != 0) : nb::borrow(Py_None);
  if (message.handle && places.size() != 0)
    places.substitute(nb::borrow<nb::list>(payload_out), message.handle);
  nb::object code = made(PyLong_FromLong(result));
  nb::object details = cut ? details_of(cut.get()) : decoded(status.details);
  return made(
      PyTuple_Pack(5, code.ptr(), details.ptr(), payload_out.ptr(), initial.ptr(), trailing.ptr()));
}

nb::object start_call(Peer& peer, nb::handle method, nb::handle timeout, nb::handle metadata,
                      nb::handle request, bool end, bool until_read) {
  Py_ssize_t size = 0;
  const char* name = PyUnicode_AsUTF8AndSize(method.ptr(), &size);
  if (!name) throw nb::python_error();
  Payload payload(request);
  const Pairs pairs(metadata);
  const tw_wait wait = wait_for(timeout);
  const int flags = (end ? TW_HALF_CLOSE : 0) | (until_read ? TW_UNTIL_READ : 0);
  tw_client_call* call = nullptr;
  check_without_gil([&](tw_status* status) {
    return tw_peer_start(peer.handle, name, static_cast<size_t>(size), pairs.get(), payload.get(),
                         flags, &wait, &call, status);
  });
  return client_call(ClientCallHandle(call));
}

nb::object link_stats(Peer& peer) {
  nb::dict dict;
  tw_peer_stats(peer.handle, visit_stats, &dict);
  return dict;
}
nb::object trace(Peer& peer) {
  nb::list events;
  const uint64_t total = tw_peer_trace(peer.handle, visit_event, events.ptr());
  return nb::make_tuple(total, events);
}
std::string death(const Peer& peer) {
  Untold why;
  tw_peer_death(peer.handle, &why);
  return why.details;
}
struct Hello {
  tw_peer_facts facts;
};

}  // namespace

nb::object process(tw_peer* peer) {
  return nb::cast(new Peer(peer), nb::rv_policy::take_ownership);
}

void bind_peers(nb::module_& m) {
  m.def("hello", [] {
    uint8_t bytes[TW_HELLO_SIZE];
    Untold status;
    check(tw_hello(bytes, &status), status);
    return as_bytes(bytes, sizeof bytes);
  });
  nb::class_<Hello>(m, "Hello")
      .def_prop_ro("version", [](const Hello& h) { return h.facts.version; })
      .def_prop_ro("same_host", [](const Hello& h) { return h.facts.same_host != 0; })
      .def_prop_ro("same_user", [](const Hello& h) { return h.facts.same_user != 0; })
      .def_prop_ro("pid", [](const Hello& h) { return h.facts.pid; });
  m.def("parse_hello", [](const nb::bytes& hello) {
    Hello theirs{};
    Untold status;
    check(tw_parse_hello(hello.c_str(), hello.size(), &theirs.facts, &status), status);
    return theirs;
  });

  m.def("link_counters", [] {
    size_t count;
    const tw_counter* const counters = tw_link_counters(&count);
    return declared(counters, count);
  });
  nb::class_<Peer> peer(m, "Peer");
  peer.def_prop_ro("transport", [](const Peer& p) { return tw_peer_transport(p.handle); })
      .def_prop_ro("address", [](const Peer& p) { return tw_peer_address(p.handle); })
      .def_prop_ro("caller", [](const Peer& p) { return decoded(tw_peer_caller(p.handle)); })
      .def_prop_ro("agent", [](const Peer& p) { return decoded(tw_peer_agent(p.handle)); })
      .def_prop_ro("pid", [](const Peer& p) { return tw_peer_pid(p.handle); })
      .def_prop_ro("alive", [](const Peer& p) { return tw_peer_alive(p.handle) != 0; })
      .def_prop_ro("death", death)
      .def("unary", unary, nb::arg("method"), nb::arg("request"), nb::arg("timeout").none(),
           nb::arg("metadata").none(), nb::arg("raw"), nb::arg("into").none() = nb::none())
      .def("start", start_call, nb::arg("method"), nb::arg("timeout").none(),
           nb::arg("metadata").none(), nb::arg("request").none() = nb::none(),
           nb::arg("end") = false, nb::arg("until_read") = false)
      .def("stats", link_stats)
      .def("trace", trace)
      .def(
          "notify",
          [](Peer& p, Events& queue, uint64_t token) {
            if (!tw_peer_notify_gone(p.handle, queue.handle, token)) throw std::bad_alloc();
          },
          nb::arg("queue"), nb::arg("token"))
      .def("share", [](Peer& p) { return process(tw_peer_share(p.handle)); })
      .def("close",
           [](Peer& p) {
             const NoGil nogil;
             tw_peer_close(p.handle);
           })
      .def(
          "__eq__",
          [](const Peer& p, nb::handle other) {
            const Peer* that = nullptr;
            return nb::try_cast(other, that) && that && that->handle == p.handle;
          },
          nb::arg("other").none())
      .def("__hash__", [](const Peer& p) { return std::hash<const void*>{}(p.handle); });
  bind_access(m, peer);
  bind_tagged(m, peer);

  m.def(
      "connect",
      [](const std::string& address, const nb::bytes& session, const nb::bytes& secret,
         const nb::bytes& instance, const nb::bytes& peer_hello, double timeout,
         int64_t max_message, nb::handle serves,
         const std::array<int64_t, TW_THRESHOLDS>& thresholds) {
        tw_server* const server = serves.is_none() ? nullptr : nb::cast<Server&>(serves).handle;
        tw_invitation invitation{address.c_str(),
                                 exactly<TW_SESSION_SIZE>(session, "session"),
                                 exactly<TW_SECRET_SIZE>(secret, "secret"),
                                 exactly<TW_INSTANCE_SIZE>(instance, "instance"),
                                 peer_hello.c_str(),
                                 peer_hello.size(),
                                 max_message,
                                 {}};
        std::ranges::copy(thresholds, invitation.thresholds);
        tw_link* link = nullptr;
        check_without_gil([&](tw_status* status) {
          return tw_connect(&invitation, server, nanos(timeout), &link, status);
        });
        return new Peer(link);
      },
      nb::arg("address"), nb::arg("session"), nb::arg("secret"), nb::arg("instance"),
      nb::arg("peer_hello"), nb::arg("timeout"), nb::arg("max_message") = -1,
      nb::arg("serves").none() = nb::none(),
      nb::arg("thresholds") = std::array<int64_t, TW_THRESHOLDS>{-1, -1, -1},
      nb::rv_policy::take_ownership);
}

}  // namespace binding
