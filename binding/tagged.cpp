// SPDX-License-Identifier: Apache-2.0
// Tagged messages, and receives that wait for one.
#include "binding.h"

namespace binding {

namespace {

// A receive that has begun. Memory of the user's is kept until it has ended, whoever still knows.
struct Receive {
  tw_receive* const handle;
  const bool into;
  Receive(tw_receive* h, bool given) : handle(h), into(given) {}
  Receive(const Receive&) = delete;
  Receive& operator=(const Receive&) = delete;
  ~Receive() { tw_receive_release(handle); }

  bool ended() const { return tw_receive_ended(handle) != 0; }
  bool cancel() {
    const NoGil nogil;
    return tw_receive_cancel(handle) != 0;
  }

  nb::object wait(nb::handle timeout, bool raw) {
    const tw_wait limit = wait_for(timeout);
    MessageHandle message;
    Untold status;
    const auto wait_until = [&](const tw_wait& until) {
      return without_gil([&] { return tw_receive_wait(handle, &until, &message.handle, &status); });
    };
    int result = wait_until(limit);
    if (result == TW_CODE_DEADLINE_EXCEEDED) {
      if (!ended()) return nb::none();
      // It has ended since, while this waited for the GIL.
      status = Untold();
      result = wait_until({0, nullptr, nullptr});
    }
    if (result != TW_INTERRUPTED) KeptObjects::get().free_some();
    check(result, status);
    if (!message.handle) raise(TW_CODE_FAILED_PRECONDITION, "the message has been taken before");
    if (into) return made(PyLong_FromSize_t(tw_message_size(message.handle)));
    return received(message.handle, raw);
  }
};

void send(Peer& peer, uint64_t tag, nb::handle message, nb::handle timeout) {
  Payload payload(message);
  tw_payload out = payload.get();
  out.keeper = nullptr;  // this waits
  const tw_wait wait = wait_for(timeout);
  check_without_gil(
      [&](tw_status* status) { return tw_peer_send(peer.handle, tag, out, &wait, status); });
}

Receive* receive(Peer& peer, uint64_t tag, nb::handle into, nb::handle queue, uint64_t token) {
  tw_events* const events = queue.is_none() ? nullptr : nb::cast<Events&>(queue).handle;
  KeptObjects& kept = KeptObjects::get();
  void* data = nullptr;
  size_t size = 0;
  tw_owner owner{};
  if (!into.is_none()) {
    auto memory = std::make_unique<Kept>(Kept{nullptr, {}});
    memory->views.reserve(1);
    memory->views.push_back(exported(into, true));
    data = memory->views.front().buf;
    size = static_cast<size_t>(memory->views.front().len);
    owner = kept.keep(memory.release());  // told also when nothing has begun
  }
  tw_receive* begun = nullptr;
  Untold status;
  const int result = without_gil([&] {
    return tw_peer_receive(peer.handle, tag, data, size, &owner, events, token, &begun, &status);
  });
  kept.free_some();
  check(result, status);
  if (data) kept.need_thread();
  return new Receive(begun, data != nullptr);
}

}  // namespace

void bind_tagged(nb::module_& m, nb::class_<Peer>& peer) {
  m.attr("MAX_TAG") = made(PyLong_FromUnsignedLongLong(TW_MAX_TAG));
  nb::class_<Receive>(m, "Receive")
      .def_prop_ro("ended", &Receive::ended)
      .def("wait", &Receive::wait, nb::arg("timeout").none() = nb::none(), nb::arg("raw") = true)
      .def("cancel", &Receive::cancel);
  peer.def("send", send, nb::arg("tag"), nb::arg("message"), nb::arg("timeout").none() = nb::none())
      .def("receive", receive, nb::arg("tag"), nb::arg("into").none() = nb::none(),
           nb::arg("queue").none() = nb::none(), nb::arg("token") = 0,
           nb::rv_policy::take_ownership);
}

}  // namespace binding
