// SPDX-License-Identifier: Apache-2.0
// The Python binding: tensorwire.h as the classes and functions of _core.pyi. It decides nothing.
#include "_core_calls.h"
#include "_core_convert.h"
#include "_core_events.h"
#include "_core_one_sided.h"
#include "_core_route.h"

namespace {

int buffer_export(PyObject* self, Py_buffer* view, int flags) {
  Buffer* const buffer = nb::inst_ptr<Buffer>(self);
  tw_buffer* const handle = buffer->handle;
  tw_buffer_expose(handle);
  const int result = PyBuffer_FillInfo(view, self, tw_buffer_data(handle),
                                       static_cast<Py_ssize_t>(tw_buffer_size(handle)),
                                       tw_buffer_readonly(handle), flags);
  if (result == 0) ++buffer->exports;
  return result;
}

void buffer_unexport(PyObject* self, Py_buffer*) { --nb::inst_ptr<Buffer>(self)->exports; }

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

  ClientCall* start(nb::handle method, nb::handle timeout, nb::handle metadata, nb::handle request,
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
    return new ClientCall(call);
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

struct Server {
  tw_server* handle = nullptr;
  explicit Server(int64_t max_message) {
    tw_status status{};
    check(tw_server_create(max_message, &handle, &status), status);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    if (handle) tw_server_release(handle);
  }

  nb::object next(nb::object timeout) {
    const tw_wait wait = wait_for(timeout);
    // Few at a time: between two batches others get their turn.
    constexpr size_t kRoom = 16;
    tw_server_call* calls[kRoom];
    size_t count = 0;
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_server_next(handle, &wait, calls, kRoom, &count, &status);
    }
    if (result == TW_CODE_UNAVAILABLE) return nb::none();
    check(result, status);
    nb::list list;
    for (size_t i = 0; i < count; ++i)
      list.append(nb::cast(new ServerCall(calls[i]), nb::rv_policy::take_ownership));
    return list;
  }

  nb::object stats() {
    nb::list list;
    tw_server_stats(
        handle,
        [](void* context, const tw_statistics* found) {
          static_cast<nb::list*>(context)->append(dict_of(*found));
        },
        &list);
    return list;
  }

  nb::object traces() {
    nb::list list;
    tw_server_trace(
        handle,
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
};

struct Peer {
  tw_peer_facts facts;
};

nb::bytes as_bytes(const void* data, size_t size) {
  return nb::bytes(static_cast<const char*>(data), size);
}

template <size_t kSize>
const uint8_t* exactly(const nb::bytes& bytes, const char* what) {
  if (bytes.size() != kSize) {
    PyErr_Format(PyExc_ValueError, "%s must have %zu bytes, not %zu", what, kSize, bytes.size());
    throw nb::python_error();
  }
  return reinterpret_cast<const uint8_t*>(bytes.c_str());
}

struct Exported {
  Py_buffer view;
  explicit Exported(nb::handle data) {
    if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;
  ~Exported() { PyBuffer_Release(&view); }
};

}  // namespace

NB_MODULE(_core_of_main, m) {
  // Daemon threads may hold objects when the interpreter goes; that is no leak worth a message.
  nb::set_leak_warnings(false);
  m.attr("__version__") = tw_version();
  g_status_error = PyErr_NewExceptionWithDoc(
      "tensorwire._core.StatusError",
      "args == (code, details): a gRPC status code and a sentence for people.", nullptr, nullptr);
  m.attr("StatusError") = nb::borrow(g_status_error);

  static PyType_Slot buffer_slots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(buffer_export)},
      {Py_bf_releasebuffer, reinterpret_cast<void*>(buffer_unexport)},
      {0, nullptr}};
  nb::class_<Buffer>(m, "Buffer", nb::type_slots(buffer_slots))
      .def_prop_ro("nbytes", [](const Buffer& b) { return tw_buffer_size(b.handle); })
      .def_prop_ro("address",
                   [](Buffer& b) {
                     b.address_known = true;
                     tw_buffer_expose(b.handle);
                     return reinterpret_cast<uintptr_t>(tw_buffer_data(b.handle));
                   })
      .def_prop_ro("readonly", [](const Buffer& b) { return tw_buffer_readonly(b.handle) != 0; })
      .def_prop_ro("leased", [](const Buffer& b) { return tw_buffer_leased(b.handle) != 0; })
      .def("separate",
           [](Buffer& b) {
             if (b.exports != 0 || b.address_known)
               raise(TW_CODE_FAILED_PRECONDITION,
                     "the buffer's memory is in use already: separate it first");
             tw_status status{};
             check(tw_buffer_separate(b.handle, &status), status);
           })
      .def("__len__", [](const Buffer& b) { return tw_buffer_size(b.handle); });

  m.def(
      "allocate",
      [](size_t nbytes, nb::object timeout) {
        const tw_wait wait = wait_for(timeout);
        tw_buffer* buffer = nullptr;
        tw_status status{};
        int result;
        {
          const NoGil nogil;
          result = tw_allocate(nbytes, &wait, &buffer, &status);
        }
        check(result, status);
        return new Buffer(buffer);
      },
      nb::arg("nbytes"), nb::arg("timeout").none() = 0.0, nb::rv_policy::take_ownership);
  m.def("publish", [](nb::handle data) {
    const Exported exported(data);
    return tw_publish(exported.view.buf, static_cast<size_t>(exported.view.len)) != 0;
  });
  m.def("is_published", [](nb::handle data) {
    const Exported exported(data);
    return tw_published(exported.view.buf, static_cast<size_t>(exported.view.len)) != 0;
  });
  m.def("arena_stats", [] {
    nb::dict dict;
    size_t count;
    const tw_counter* const counters = tw_memory_counters(&count);
    std::vector<uint64_t> values(count);
    put_values(dict, counters, values.data(), tw_arena(values.data(), count));
    return dict;
  });
  m.def("link_counters", [] {
    size_t count;
    const tw_counter* const counters = tw_link_counters(&count);
    return declared(counters, count);
  });
  m.def("memory_counters", [] {
    size_t count;
    const tw_counter* const counters = tw_memory_counters(&count);
    return declared(counters, count);
  });
  m.def(
      "trace",
      [](size_t events) {
        tw_status status{};
        check(tw_trace(events, &status), status);
      },
      nb::arg("events"));
  m.def("incidents", [] {
    nb::dict dict;
    tw_status status{};
    const auto visit = [](void* out, const char* kind, const char* reason, uint64_t count) {
      (*static_cast<nb::dict*>(out))[nb::make_tuple(kind, reason)] = count;
    };
    check(tw_incidents(visit, &dict, &status), status);
    return dict;
  });
  m.def("audit_next", []() -> nb::object {
    const tw_wait wait = wait_forever();
    tw_audit_line line{};
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_audit_next(&wait, &line, &status);
    }
    if (result == TW_CODE_UNAVAILABLE) return nb::none();
    check(result, status);
    return nb::make_tuple(line.kind, line.reason, decoded(line.peer), decoded(line.details),
                          line.more);
  });
  m.def("audit_close", tw_audit_close);
  m.def("when_kept", [](nb::handle hook) { KeptObjects::get().set_hook(hook.ptr()); });
  m.def("free_kept", [] {
    bool open;
    {
      const NoGil nogil;
      open = KeptObjects::get().wait();
    }
    KeptObjects::get().free_some();
    return open;
  });
  m.def("close_kept", [] { KeptObjects::get().close(); });
  m.def("reset_kept", [] { KeptObjects::get().reset(); });
  m.def("function_table", [] { return reinterpret_cast<uintptr_t>(tw_get_table()); });
  m.def("settings", [] {
    nb::dict dict;
    tw_status status{};
    check(tw_settings(visit_record, &dict, &status), status);
    return dict;
  });
  m.def("each_setting", [] {
    nb::list list;
    tw_each_setting(
        [](void* context, const tw_setting* setting) {
          nb::dict row;
          row["variable"] = setting->variable;
          row["name"] = setting->name;
          row["alias_of"] = setting->alias_of ? nb::cast(setting->alias_of) : nb::none();
          row["default"] = setting->fallback;
          row["permitted"] = setting->permitted;
          row["help"] = setting->help;
          static_cast<nb::list*>(context)->append(row);
        },
        &list);
    return list;
  });
  m.def(
      "read_setting",
      [](const std::string& variable) {
        char value[4096];
        tw_status status{};
        check(tw_read_setting(variable.c_str(), value, sizeof value, &status), status);
        return decoded(value);
      },
      nb::arg("variable"));
  m.def(
      "choose_policy",
      [](const std::string& transport, const std::string& forbid) {
        nb::object chosen;
        tw_status status{};
        check(tw_choose_policy(
                  transport.c_str(), forbid.c_str(),
                  [](void* context, const tw_policy* found) {
                    nb::list forbidden;
                    for (size_t i = 0; i < found->count; ++i) forbidden.append(found->forbidden[i]);
                    *static_cast<nb::object*>(context) =
                        nb::make_tuple(found->required, forbidden, decoded(found->origin));
                  },
                  &chosen, &status),
              status);
        return chosen;
      },
      nb::arg("transport"), nb::arg("forbid"));
  m.def("host", [] {
    nb::dict dict;
    tw_host(visit_record, &dict);
    return dict;
  });
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    const NoGil nogil;
    tw_shut_down();
  }));

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

  nb::class_<Events>(m, "EventQueue")
      .def(nb::init<>())
      .def("wait", &Events::wait, nb::arg("timeout").none() = nb::none())
      .def("fileno", &Events::fileno)
      .def("close", [](Events& queue) { tw_events_close(queue.handle); });
  m.attr("ON_END") = static_cast<int>(TW_ON_END);
  m.attr("ON_CUT") = static_cast<int>(TW_ON_CUT);
  m.attr("ON_MESSAGE") = static_cast<int>(TW_ON_MESSAGE);
  m.attr("ON_ROOM") = static_cast<int>(TW_ON_ROOM);
  m.attr("ON_INITIAL") = static_cast<int>(TW_ON_INITIAL);

  static PyType_Slot messages_slots[] = {{Py_tp_iter, reinterpret_cast<void*>(messages_iter)},
                                         {Py_tp_iternext, reinterpret_cast<void*>(messages_next)},
                                         {0, nullptr}};
  nb::class_<Messages>(m, "Messages", nb::type_slots(messages_slots));

  bind_one_sided(m);

  nb::class_<ClientCall>(m, "Call")
      .def("send", &ClientCall::send, nb::arg("message"), nb::arg("end") = false)
      .def("end_send", &ClientCall::end_send)
      .def("receive", &ClientCall::receive, nb::arg("raw"))
      .def(
          "messages",
          [](nb::handle_t<ClientCall> self, bool raw) {
            ClientCall* call = nb::inst_ptr<ClientCall>(self);
            return new Messages{nb::borrow(self), call, nullptr, raw};
          },
          nb::arg("raw"), nb::rv_policy::take_ownership)
      .def("initial_metadata", &ClientCall::initial_metadata)
      .def("status", &ClientCall::outcome, nb::arg("timeout").none() = nb::none())
      .def_prop_ro("ended", [](const ClientCall& c) { return tw_call_ended(c.handle) != 0; })
      .def_prop_ro("time_remaining", [](const ClientCall& c) { return c.time_remaining(); })
      .def("cancel", &ClientCall::cancel, nb::arg("code") = 1,
           nb::arg("details") = "Locally cancelled by application!")
      .def(
          "notify",
          [](ClientCall& c, Events& queue, uint64_t token, int on) { c.notify(queue, token, on); },
          nb::arg("queue"), nb::arg("token"), nb::arg("on") = static_cast<int>(TW_ON_END));

  nb::class_<Link>(m, "Link")
      .def_prop_ro("transport", [](const Link& l) { return tw_link_transport(l.handle); })
      .def_prop_ro("peer", [](const Link& l) { return tw_link_peer(l.handle); })
      .def_prop_ro("alive", [](const Link& l) { return tw_link_alive(l.handle) != 0; })
      .def_prop_ro("death", &Link::death)
      .def("unary", &Link::unary, nb::arg("method"), nb::arg("request"), nb::arg("timeout").none(),
           nb::arg("metadata").none(), nb::arg("raw"))
      .def("start", &Link::start, nb::arg("method"), nb::arg("timeout").none(),
           nb::arg("metadata").none(), nb::arg("request").none() = nb::none(),
           nb::arg("end") = false, nb::arg("until_read") = false, nb::rv_policy::take_ownership)
      .def("stats", &Link::stats)
      .def(
          "remote", [](Link& l) { return new Remote(there(tw_link_remote(l.handle))); },
          nb::rv_policy::take_ownership)
      .def("trace", &Link::trace)
      .def("close", [](Link& l) {
        const NoGil nogil;
        tw_link_close(l.handle);
      });

  bind_route(m);

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

  nb::class_<ServerCall>(m, "ServerCall")
      .def_prop_ro("method", &ServerCall::method)
      .def_prop_ro("peer", [](const ServerCall& c) { return tw_call_peer(c.handle); })
      .def_prop_ro("agent", [](const ServerCall& c) { return tw_call_agent(c.handle); })
      .def_prop_ro("transport", [](const ServerCall& c) { return tw_call_transport(c.handle); })
      .def_prop_ro("metadata",
                   [](const ServerCall& c) {
                     tw_metadata* metadata = nullptr;
                     tw_status status{};
                     check(tw_call_metadata(c.handle, &metadata, &status), status);
                     return metadata_list(Metadata{metadata});
                   })
      .def_prop_ro("time_remaining", [](const ServerCall& c) { return c.time_remaining(); })
      .def_prop_ro("active", [](const ServerCall& c) { return tw_call_active(c.handle) != 0; })
      .def("receive", &ServerCall::receive, nb::arg("raw"))
      .def(
          "messages",
          [](nb::handle_t<ServerCall> self, bool raw) {
            ServerCall* call = nb::inst_ptr<ServerCall>(self);
            return new Messages{nb::borrow(self), call, call, raw};
          },
          nb::arg("raw"), nb::rv_policy::take_ownership)
      .def("send_initial_metadata", &ServerCall::send_initial, nb::arg("metadata").none())
      .def("send", &ServerCall::send, nb::arg("message"))
      .def("finish", &ServerCall::finish, nb::arg("code"), nb::arg("details"),
           nb::arg("trailing").none(), nb::arg("message").none() = nb::none())
      .def("drop_if_over", &ServerCall::drop_if_over)
      .def("finish_and_next", &ServerCall::finish_and_next, nb::arg("code"), nb::arg("details"),
           nb::arg("trailing").none(), nb::arg("message").none() = nb::none())
      .def(
          "notify",
          [](ServerCall& c, Events& queue, uint64_t token, int on) { c.notify(queue, token, on); },
          nb::arg("queue"), nb::arg("token"), nb::arg("on") = static_cast<int>(TW_ON_END))
      .def(
          "remote", [](ServerCall& c) { return new Remote(there(tw_call_remote(c.handle))); },
          nb::rv_policy::take_ownership)
      .def("stats", [](ServerCall& c) {
        nb::dict dict;
        tw_call_link_stats(c.handle, visit_stats, &dict);
        return dict;
      });

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
            tw_status status{};
            check(tw_server_listen_tcp(s.handle, host.c_str(), port, &bound, &status), status);
            return bound;
          },
          nb::arg("host"), nb::arg("port"))
      .def("listen_local",
           [](Server& s) {
             char path[256];
             tw_status status{};
             check(tw_server_listen_local(s.handle, path, sizeof path, &status), status);
             return std::string(path);
           })
      .def(
          "admit",
          [](Server& s, const nb::bytes& hello, int connections, double ttl,
             const std::string& source) {
            uint8_t session[TW_SESSION_SIZE], secret[TW_SECRET_SIZE];
            tw_status status{};
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
            tw_status status{};
            check(tw_server_introduce(s.handle, exactly<TW_SESSION_SIZE>(session, "session"),
                                      caller.c_str(), agent.c_str(), &status),
                  status);
          },
          nb::arg("session"), nb::arg("caller"), nb::arg("agent"))
      .def("next", &Server::next, nb::arg("timeout").none() = nb::none())
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
      .def("stats", &Server::stats)
      .def("traces", &Server::traces);
}

// The types of the module belong to one interpreter, and nanobind would forget the first one's when
// a second one loads it.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "tensorwire works in the main interpreter of a process only, not in this "
                  "subinterpreter: use a process of its own");
  return nullptr;
}
