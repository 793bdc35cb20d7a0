// SPDX-License-Identifier: Apache-2.0
// Calls of both ends, and the iterator over their messages.
#include <cstring>

#include "binding.h"

namespace binding {

namespace {

// Calls of one method follow one another, so the last name is kept. Nobody waits for it: whoever
// comes while another thread has it makes a string of its own.
class LastName {
 public:
  static LastName& get() {
    static auto* const name = new LastName;  // outlives the interpreter
    return *name;
  }

  nb::str of(const char* data, size_t size) {
    if (taken_.test_and_set(std::memory_order_acquire)) return string(data, size);
    const Turn turn(taken_);
    if (!object_.is_valid() || text_.size() != size || std::memcmp(text_.data(), data, size) != 0) {
      nb::str fresh = string(data, size);
      text_.assign(data, size);
      object_ = std::move(fresh);
    }
    return object_;
  }

 private:
  class Turn {
   public:
    explicit Turn(std::atomic_flag& taken) : taken_(taken) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { taken_.clear(std::memory_order_release); }

   private:
    std::atomic_flag& taken_;
  };

  static nb::str string(const char* data, size_t size) {
    return nb::steal<nb::str>(
        made(PyUnicode_FromStringAndSize(data, static_cast<Py_ssize_t>(size))).release());
  }

  std::atomic_flag taken_;
  nb::str object_;  // guarded by taken_, as what follows
  std::string text_;
};

}  // namespace

nb::str details_of(const tw_client_call* call) {
  const char* details = nullptr;
  size_t size = 0;
  tw_call_details(call, &details, &size);
  return decoded({details, size});
}

namespace {

struct CallBase {
  tw_call* const base;
  explicit CallBase(tw_call* h) : base(h) {}
  CallBase(const CallBase&) = delete;
  CallBase& operator=(const CallBase&) = delete;
  ~CallBase() { tw_call_release(base); }

  nb::object time_remaining() const {
    const int64_t left = tw_call_time_left(base);
    return left < 0 ? nb::none() : made(PyFloat_FromDouble(static_cast<double>(left) * 1e-9));
  }
  void notify(Events& queue, uint64_t token, int on) {
    if (on < TW_ON_END || on > TW_ON_INITIAL) throw nb::value_error("on: one of ON_...");
    if (!tw_call_notify(base, on, queue.handle, token)) throw std::bad_alloc();
  }

  // Null when there is and will be no message.
  nb::object next(bool raw, const tw_wait& wait) {
    MessageHandle message;
    if (!tw_call_take(base, &message.handle)) {
      check_without_gil(
          [&](tw_status* status) { return tw_call_receive(base, &wait, &message.handle, status); });
      if (!message.handle) return {};
    }
    return received(message.handle, raw);
  }
};

// A small message to a peer with room goes without a wait, hence without letting go of the GIL. It
// may not wait after all: another thread may have taken the room, and nobody waits with the GIL,
// nor, where there is none, as a thread for which all others may have to wait.
template <class Send>
int send_quickly(tw_call* call, Payload& payload, const tw_wait& wait, Send&& send) {
  constexpr size_t kSmall = 4096;
  if (payload.bytes() <= kSmall && tw_call_sendable(call)) {
    const int result = send(payload.get(), tw_wait{0, nullptr, nullptr});
    if (result != TW_CODE_DEADLINE_EXCEEDED) return result;  // else the peer will not see it
  }
  const NoGil nogil;
  return send(payload.get(), wait);
}

struct ClientCall : CallBase {
  tw_client_call* const handle;
  explicit ClientCall(tw_client_call* h) : CallBase(h), handle(h) {}
  // A signal may come between the start of a call and whoever was to look after it.
  ~ClientCall() {
    if (tw_call_ended(handle)) return;
    const NoGil nogil;
    tw_call_cancel(handle, TW_CODE_CANCELLED, "the call was given up");
  }

  bool send(nb::handle message, bool end, nb::handle timeout) {
    Payload payload(message);
    Untold status;
    const auto send = [&](const tw_payload& out, const tw_wait& wait) {
      return tw_call_send(handle, out, end, &wait, &status);
    };
    const int result = send_quickly(base, payload, wait_for(timeout), send);
    if (result == TW_CODE_CANCELLED || (result > 0 && tw_call_ended(handle))) return false;
    check(result, status);
    return true;
  }
  void end_send() {
    Untold status;
    const int result = tw_call_end_send(handle, &status);
    if (result != TW_OK && !tw_call_ended(handle)) check(result, status);
  }
  nb::object receive(bool raw, nb::handle timeout) {
    nb::object message = next(raw, wait_for(timeout));
    return message.is_valid() ? message : nb::none();
  }
  nb::object initial_metadata() {
    tw_metadata* metadata = nullptr;
    const tw_wait wait = wait_forever();
    check_without_gil(
        [&](tw_status* status) { return tw_call_initial(handle, &wait, &metadata, status); });
    return metadata_list(Metadata{metadata});
  }
  nb::object outcome(nb::object timeout) {
    tw_metadata* trailing = nullptr;
    Untold status;
    int32_t code = 0;
    const tw_wait wait = wait_for(timeout);
    const int result =
        without_gil([&] { return tw_call_outcome(handle, &wait, &code, &trailing, &status); });
    const Metadata held{trailing};
    if (result == TW_CODE_DEADLINE_EXCEEDED) return nb::none();
    check(result, status);
    return nb::make_tuple(code, details_of(handle), metadata_list(held));
  }
  bool cancel(int code, const std::string& details) {
    return tw_call_cancel(handle, code, details.c_str()) != 0;
  }
};

struct ServerCall : CallBase {
  tw_server_call* const handle;
  explicit ServerCall(tw_server_call* h) : CallBase(h), handle(h) {}

  nb::str method() const {
    const char* data;
    size_t size;
    tw_call_method(handle, &data, &size);
    return LastName::get().of(data, size);
  }
  bool drop_if_over() { return tw_call_drop_if_over(handle) != 0; }
  nb::object receive(bool raw) {
    nb::object message = next(raw, wait_forever());
    if (message.is_valid()) return message;
    if (!tw_call_active(handle))
      raise(TW_CODE_CANCELLED,
            "the call is no longer active: cancelled, past its deadline, or its client is gone");
    return nb::none();
  }
  void send_initial(nb::handle metadata) {
    const Pairs pairs(metadata);
    Untold status;
    check(tw_call_send_initial(handle, pairs.get(), &status), status);
  }
  void send(nb::handle message) {
    Payload payload(message);
    Untold status;
    const auto send = [&](const tw_payload& out, const tw_wait& wait) {
      return tw_call_reply(handle, out, &wait, &status);
    };
    check(send_quickly(base, payload, wait_forever(), send), status);
  }
  int finish_to(int code, nb::handle details, nb::handle trailing, nb::handle message,
                tw_server_call** next) {
    Payload payload(message);
    const Pairs pairs(trailing);
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(details.ptr(), &size);
    if (!text) throw nb::python_error();
    const NoGil nogil;
    return tw_call_finish(handle, code, text, static_cast<size_t>(size), pairs.get(), payload.get(),
                          next, nullptr);
  }
  bool finish(int code, nb::handle details, nb::handle trailing, nb::handle message) {
    return finish_to(code, details, trailing, message, nullptr) == TW_OK;
  }
  nb::object finish_and_next(int code, nb::handle details, nb::handle trailing,
                             nb::handle message) {
    tw_server_call* next = nullptr;
    (void)finish_to(code, details, trailing, message, &next);
    if (!next) return nb::none();
    return server_call(ServerCallHandle(next));
  }
};

// An iterator at C speed: no frame of Python between two messages.
struct Messages {
  nb::object owner;  // keeps the call
  CallBase* call;
  ServerCall* server;  // null at the client
  bool raw;
};

PyObject* messages_next(PyObject* self) {
  Messages* const messages = nb::inst_ptr<Messages>(self);
  try {
    if (messages->server) {
      nb::object message = messages->server->receive(messages->raw);
      return message.is_none() ? nullptr : message.release().ptr();
    }
    nb::object message = messages->call->next(messages->raw, wait_forever());
    return message.is_valid() ? message.release().ptr() : nullptr;
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* messages_iter(PyObject* self) {
  Py_INCREF(self);
  return self;
}

}  // namespace

nb::object client_call(ClientCallHandle call) {
  return instance<ClientCall>([&] { return call.release(); });
}

nb::object server_call(ServerCallHandle call) {
  return instance<ServerCall>([&] { return call.release(); });
}

void bind_calls(nb::module_& m) {
  static PyType_Slot messages_slots[] = {{Py_tp_iter, reinterpret_cast<void*>(messages_iter)},
                                         {Py_tp_iternext, reinterpret_cast<void*>(messages_next)},
                                         {0, nullptr}};
  nb::class_<Messages>(m, "Messages", nb::type_slots(messages_slots));

  nb::class_<ClientCall>(m, "Call")
      .def("send", &ClientCall::send, nb::arg("message"), nb::arg("end") = false,
           nb::arg("timeout").none() = nb::none())
      .def("end_send", &ClientCall::end_send)
      .def("receive", &ClientCall::receive, nb::arg("raw"), nb::arg("timeout").none() = nb::none())
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

  nb::class_<ServerCall>(m, "ServerCall")
      .def_prop_ro("method", &ServerCall::method)
      .def_prop_ro("peer", [](const ServerCall& c) { return tw_call_peer(c.handle); })
      .def_prop_ro("agent", [](const ServerCall& c) { return tw_call_agent(c.handle); })
      .def_prop_ro("transport", [](const ServerCall& c) { return tw_call_transport(c.handle); })
      .def_prop_ro("metadata",
                   [](const ServerCall& c) {
                     tw_metadata* metadata = nullptr;
                     Untold status;
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
      .def("process", [](ServerCall& c) { return process(tw_call_process(c.handle)); });
}

}  // namespace binding
