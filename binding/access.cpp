// SPDX-License-Identifier: Apache-2.0
// One-sided operations, and who keeps the memory of Python objects that a peer, or the runtime, may
// touch.
#include "binding.h"

namespace binding {

bool Access::wait(nb::handle timeout) {
  const tw_wait limit = wait_for(timeout);
  Untold status;
  const auto wait_until = [&](const tw_wait& until) {
    return without_gil([&] { return tw_access_wait(handle, &until, &status); });
  };
  int result = wait_until(limit);
  if (result == TW_CODE_DEADLINE_EXCEEDED) {
    if (!ended()) return false;
    // It has ended since, while this waited for the GIL.
    status = Untold();
    result = wait_until({0, nullptr, nullptr});
  }
  if (result != TW_INTERRUPTED)
    KeptObjects::get().free_some();  // its memory is no longer exported when this returns
  check(result, status);
  return true;
}

namespace {

// Concealed at the latest when nobody has it any more: only then is the memory let go of.
struct Region {
  const PeerHandle peer;
  Py_buffer memory;
  std::atomic<uint64_t> id{0};

  Region(tw_peer* to, nb::handle data, bool writable)
      : peer(tw_peer_share(to)), memory(exported(data, writable)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    const uint64_t region = id.exchange(0);
    if (region != 0) {
      const tw_wait at_once{0, nullptr, nullptr};
      const NoGil nogil;
      tw_peer_conceal(peer.get(), region, &at_once, nullptr);
    }
    PyBuffer_Release(&memory);
  }

  // False: it was before, or the link is gone.
  bool conceal(nb::handle timeout) {
    const uint64_t region = id.load();
    if (region == 0) return false;
    const tw_wait limit = wait_for(timeout);
    Untold status;
    const int result =
        without_gil([&] { return tw_peer_conceal(peer.get(), region, &limit, &status); });
    if (result == TW_OK || result == TW_CODE_NOT_FOUND) {
      id = 0;
      return result == TW_OK;
    }
    raise_result(result, status);
  }

  nb::object wait(uint64_t offset, uint64_t at_least, nb::handle timeout) {
    const tw_wait limit = wait_for(timeout);
    Untold status;
    uint64_t value = 0;
    const int result = without_gil([&] {
      return tw_peer_wait_word(peer.get(), id, offset, at_least, &limit, &value, &status);
    });
    if (result == TW_CODE_DEADLINE_EXCEEDED) return nb::none();
    check(result, status);
    return made(PyLong_FromUnsignedLongLong(value));
  }

  uint64_t change(uint64_t offset, uint64_t value, bool add) {
    Untold status;
    uint64_t before = 0;
    const int result =
        tw_peer_change_word(peer.get(), id, offset, value, add ? 1 : 0, &before, &status);
    check(result, status);
    return before;
  }
};

Region* expose(Peer& peer, nb::handle data, uint32_t rights) {
  const bool writable = (rights & (TW_MAY_WRITE | TW_MAY_UPDATE)) != 0;
  auto region = std::make_unique<Region>(peer.handle, data, writable);
  const Py_buffer& memory = region->memory;
  uint64_t id = 0;
  check_without_gil([&](tw_status* status) {
    return tw_peer_expose(peer.handle, memory.buf, static_cast<size_t>(memory.len), rights, nullptr,
                          &id, status);
  });
  region->id = id;
  return region.release();
}

nb::object region_of_peer(Peer& peer, uint64_t id) {
  uint64_t size;
  uint32_t rights;
  if (!tw_peer_region(peer.handle, id, &size, &rights)) return nb::none();
  return nb::make_tuple(size, rights);
}

Access* start_access(Peer& peer, int kind, uint64_t region, uint64_t offset, nb::handle local,
                     uint64_t operand, uint64_t expected, uint32_t immediate, nb::handle queue,
                     uint64_t token) {
  tw_events* const events = queue.is_none() ? nullptr : nb::cast<Events&>(queue).handle;
  const bool writes = kind == TW_WRITE || kind == TW_WRITE_IMMEDIATE;
  auto memory = std::make_unique<Kept>(Kept{nullptr, {}});
  memory->views.reserve(1);
  memory->views.push_back(exported(local, !writes));
  const Py_buffer& view = memory->views.front();
  tw_access_request request{};
  request.kind = kind;
  request.immediate = immediate;
  request.region = region;
  request.offset = offset;
  request.local = view.buf;
  request.length = static_cast<uint64_t>(view.len);
  request.operand = operand;
  request.expected = expected;
  KeptObjects& kept = KeptObjects::get();
  const tw_owner owner = kept.keep(memory.release());  // told also when nothing has begun
  tw_access* access = nullptr;
  Untold status;
  const int result = without_gil([&] {
    return tw_peer_access(peer.handle, &request, &owner, events, token, &access, &status);
  });
  kept.free_some();
  check(result, status);
  kept.need_thread();
  return new Access(access);
}

nb::object immediate(Peer& peer, nb::handle timeout) {
  const tw_wait limit = wait_for(timeout);
  Untold status;
  uint32_t value = 0;
  const int result =
      without_gil([&] { return tw_peer_immediate(peer.handle, &limit, &value, &status); });
  if (result == TW_CODE_DEADLINE_EXCEEDED) return nb::none();
  check(result, status);
  return made(PyLong_FromUnsignedLong(value));
}
}  // namespace

void bind_access(nb::module_& m, nb::class_<Peer>& peer) {
  m.attr("MAY_READ") = static_cast<int>(TW_MAY_READ);
  m.attr("MAY_WRITE") = static_cast<int>(TW_MAY_WRITE);
  m.attr("MAY_UPDATE") = static_cast<int>(TW_MAY_UPDATE);
  m.attr("READ") = static_cast<int>(TW_READ);
  m.attr("WRITE") = static_cast<int>(TW_WRITE);
  m.attr("WRITE_IMMEDIATE") = static_cast<int>(TW_WRITE_IMMEDIATE);
  m.attr("FETCH_ADD") = static_cast<int>(TW_FETCH_ADD);
  m.attr("COMPARE_SWAP") = static_cast<int>(TW_COMPARE_SWAP);

  nb::class_<Region>(m, "Region")
      .def_prop_ro("id", [](const Region& r) { return r.id.load(); })
      .def("conceal", &Region::conceal, nb::arg("timeout").none() = nb::none())
      .def("wait", &Region::wait, nb::arg("offset"), nb::arg("at_least"),
           nb::arg("timeout").none() = nb::none())
      .def(
          "set", [](Region& r, uint64_t offset, uint64_t value) { r.change(offset, value, false); },
          nb::arg("offset"), nb::arg("value"))
      .def(
          "add",
          [](Region& r, uint64_t offset, uint64_t value) { return r.change(offset, value, true); },
          nb::arg("offset"), nb::arg("value"));
  nb::class_<Access>(m, "Access")
      .def_prop_ro("ended", &Access::ended)
      .def("wait", &Access::wait, nb::arg("timeout").none() = nb::none());
  peer.def("expose", expose, nb::arg("data"), nb::arg("rights"), nb::rv_policy::take_ownership)
      .def("region", region_of_peer, nb::arg("region"))
      .def("access", start_access, nb::arg("kind"), nb::arg("region"), nb::arg("offset"),
           nb::arg("local"), nb::arg("operand") = 0, nb::arg("expected") = 0,
           nb::arg("immediate") = 0, nb::arg("queue").none() = nb::none(), nb::arg("token") = 0,
           nb::rv_policy::take_ownership)
      .def("immediate", immediate, nb::arg("timeout").none() = nb::none());
  bind_blocking_access(peer);
  bind_batches(m, peer);
}

}  // namespace binding
