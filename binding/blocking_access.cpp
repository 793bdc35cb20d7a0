// SPDX-License-Identifier: Apache-2.0
// One-sided operations that return when they have been done: at once where the peer's memory is
// mapped.
#include <memory>

#include "binding.h"

namespace binding {

namespace {

// From this size on others may have the GIL while bytes are copied, which takes some microseconds.
constexpr size_t kWrittenWithoutGil = 64 << 10;

// An object's memory, exported for as long as this lives.
struct View {
  Py_buffer buffer;
  View(nb::handle data, bool writable) : buffer(exported(data, writable)) {}
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (buffer.obj) PyBuffer_Release(&buffer);
  }
  // For the runtime to keep.
  tw_owner hand_over() {
    auto memory = std::make_unique<Kept>(Kept{nullptr, {}});
    memory->views.reserve(1);
    memory->views.push_back(std::exchange(buffer, Py_buffer{}));
    return KeptObjects::get().keep(memory.release());
  }
};

bool done_by_mapping(Peer& peer, const tw_access_request& request, const tw_signal* signal) {
  Untold status;
  int done = 0;
  int result;
  if (request.length < kWrittenWithoutGil) {
    result = tw_peer_access_mapped(peer.handle, &request, signal, &done, &status);
  } else {
    const NoGil nogil;
    result = tw_peer_access_mapped(peer.handle, &request, signal, &done, &status);
  }
  check(result, status);
  return done != 0;
}

// An access that goes on when the wait ends early.
void wait_for_end(tw_access* started, nb::handle timeout) {
  KeptObjects::get().need_thread();
  Access access(started);
  if (!access.wait(timeout))
    raise(TW_CODE_DEADLINE_EXCEEDED, "the operation has not ended in time, and goes on");
}

void by_frames(Peer& peer, const tw_access_request& request, const tw_signal* signal, View& view,
               nb::handle timeout) {
  const tw_owner owner = view.hand_over();  // told also when nothing has begun
  tw_access* access = nullptr;
  Untold status;
  int result;
  {
    const NoGil nogil;
    if (signal) {
      tw_batch* batch = nullptr;
      result = tw_peer_prepare(peer.handle, &request, 1, signal, &batch, &status);
      if (result == TW_OK) {
        result = tw_batch_start(batch, nullptr, &owner, nullptr, 0, &access, &status);
        tw_batch_release(batch);
      } else {
        owner.release(owner.context);
      }
    } else {
      result = tw_peer_access(peer.handle, &request, &owner, nullptr, 0, &access, &status);
    }
  }
  if (result != TW_OK) KeptObjects::get().free_some();
  check(result, status);
  wait_for_end(access, timeout);
}

void move(Peer& peer, int kind, uint64_t region, uint64_t offset, nb::handle local,
          const tw_signal* signal, nb::handle timeout) {
  View view(local, kind == TW_READ);
  tw_access_request request{};
  request.kind = kind;
  request.region = region;
  request.offset = offset;
  request.local = view.buffer.buf;
  request.length = static_cast<uint64_t>(view.buffer.len);
  if (!done_by_mapping(peer, request, signal)) by_frames(peer, request, signal, view, timeout);
}

void read(Peer& peer, uint64_t region, uint64_t offset, nb::handle out, nb::handle timeout) {
  move(peer, TW_READ, region, offset, out, nullptr, timeout);
}

void write(Peer& peer, uint64_t region, uint64_t offset, nb::handle data, nb::handle timeout) {
  move(peer, TW_WRITE, region, offset, data, nullptr, timeout);
}

void write_signal(Peer& peer, uint64_t region, uint64_t offset, nb::handle data,
                  uint64_t signal_region, uint64_t signal_offset, uint64_t value, bool add,
                  nb::handle timeout) {
  const tw_signal signal{signal_region, signal_offset, value, add ? 1 : 0};
  move(peer, TW_WRITE, region, offset, data, &signal, timeout);
}

// The value before. That word stays there if the wait ends before the operation.
uint64_t update(Peer& peer, tw_access_request& request, nb::handle timeout) {
  uint64_t before = 0;
  request.local = &before;
  request.length = sizeof before;
  if (done_by_mapping(peer, request, nullptr)) return before;
  const auto kept = std::make_shared<uint64_t>(0);
  request.local = kept.get();
  const tw_owner owner{
      [](void* context) { delete static_cast<std::shared_ptr<uint64_t>*>(context); },
      new std::shared_ptr<uint64_t>(kept)};
  tw_access* access = nullptr;
  check_without_gil([&](tw_status* status) {
    return tw_peer_access(peer.handle, &request, &owner, nullptr, 0, &access, status);
  });
  wait_for_end(access, timeout);
  return *kept;
}

uint64_t fetch_add(Peer& peer, uint64_t region, uint64_t offset, uint64_t value,
                   nb::handle timeout) {
  tw_access_request request{};
  request.kind = TW_FETCH_ADD;
  request.region = region;
  request.offset = offset;
  request.operand = value;
  return update(peer, request, timeout);
}

uint64_t compare_swap(Peer& peer, uint64_t region, uint64_t offset, uint64_t expected,
                      uint64_t value, nb::handle timeout) {
  tw_access_request request{};
  request.kind = TW_COMPARE_SWAP;
  request.region = region;
  request.offset = offset;
  request.operand = value;
  request.expected = expected;
  return update(peer, request, timeout);
}

nb::object why_not_mapped(Peer& peer, uint64_t region) {
  Untold status;
  const int result =
      without_gil([&] { return tw_peer_why_not_mapped(peer.handle, region, &status); });
  if (result == TW_OK) return nb::none();
  return decoded(status.details);
}

tw_access* flushing(Peer& peer) {
  tw_access* access = nullptr;
  check_without_gil([&](tw_status* status) { return tw_peer_flush(peer.handle, &access, status); });
  return access;
}

bool flush(Peer& peer, nb::handle timeout) { return Access(flushing(peer)).wait(timeout); }

Access* start_flush(Peer& peer) { return new Access(flushing(peer)); }

}  // namespace

void bind_blocking_access(nb::class_<Peer>& peer) {
  peer.def(
          "mapped", [](Peer& p, uint64_t region) { return tw_peer_mapped(p.handle, region) != 0; },
          nb::arg("region"))
      .def("why_not_mapped", why_not_mapped, nb::arg("region"))
      .def("read", read, nb::arg("region"), nb::arg("offset"), nb::arg("out"),
           nb::arg("timeout").none() = nb::none())
      .def("write", write, nb::arg("region"), nb::arg("offset"), nb::arg("data"),
           nb::arg("timeout").none() = nb::none())
      .def("write_signal", write_signal, nb::arg("region"), nb::arg("offset"), nb::arg("data"),
           nb::arg("signal_region"), nb::arg("signal_offset"), nb::arg("value"),
           nb::arg("add") = false, nb::arg("timeout").none() = nb::none())
      .def("fetch_add", fetch_add, nb::arg("region"), nb::arg("offset"), nb::arg("value"),
           nb::arg("timeout").none() = nb::none())
      .def("compare_swap", compare_swap, nb::arg("region"), nb::arg("offset"), nb::arg("expected"),
           nb::arg("value"), nb::arg("timeout").none() = nb::none())
      .def("fence", [](Peer& p) { tw_peer_fence(p.handle); })
      .def("flush", flush, nb::arg("timeout").none() = nb::none())
      .def("start_flush", start_flush, nb::rv_policy::take_ownership);
}

}  // namespace binding
