// SPDX-License-Identifier: Apache-2.0
// One-sided operations in the binding: who keeps the memory of Python objects that a peer, or the
// runtime, may touch.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "_core_convert.h"
#include "_core_events.h"

// Included by _core.cpp only.
namespace {

// An object's memory, exported for as long as this lives.
struct Memory {
  Py_buffer view;
  Memory(nb::handle data, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(data.ptr(), &view, flags) != 0) throw nb::python_error();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { PyBuffer_Release(&view); }
};

struct RemoteHandle {
  tw_remote* const handle;
  explicit RemoteHandle(tw_remote* h) : handle(h) {}
  RemoteHandle(const RemoteHandle&) = delete;
  RemoteHandle& operator=(const RemoteHandle&) = delete;
  ~RemoteHandle() { tw_remote_release(handle); }
};

// Concealed at the latest when nobody has it any more: only then is the memory let go of.
struct Region {
  const std::shared_ptr<RemoteHandle> remote;
  const std::unique_ptr<Memory> memory;
  uint64_t id = 0;

  Region(std::shared_ptr<RemoteHandle> to, std::unique_ptr<Memory> of)
      : remote(std::move(to)), memory(std::move(of)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { conceal(); }

  // False: it was before, or the link is gone.
  bool conceal() {
    if (id == 0) return false;
    const uint64_t region = std::exchange(id, 0);
    const NoGil nogil;
    return tw_remote_conceal(remote->handle, region, nullptr) == TW_OK;
  }
};

// An operation under way, with its local memory.
class AccessHandle {
 public:
  AccessHandle(tw_access* handle, std::unique_ptr<Memory> memory)
      : under_way_{handle, std::move(memory)} {}
  AccessHandle(const AccessHandle&) = delete;
  AccessHandle& operator=(const AccessHandle&) = delete;
  ~AccessHandle() {
    // Nobody waits for it any more, but its memory is in use until it has ended.
    abandoned().push_back(std::move(under_way_));
    sweep();
  }

  bool ended() const { return tw_access_ended(under_way_.handle) != 0; }
  bool wait(nb::handle timeout) {
    const tw_wait limit = wait_for(timeout);
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_access_wait(under_way_.handle, &limit, &status);
    }
    if (result == TW_CODE_DEADLINE_EXCEEDED && !ended()) return false;
    check(result, status);
    return true;
  }

  // Lets go of what has ended unseen. Guarded by the GIL.
  static void sweep() {
    for (size_t left = abandoned().size(); left != 0; --left) {
      UnderWay one = std::move(abandoned().front());
      abandoned().pop_front();
      if (!tw_access_ended(one.handle))
        abandoned().push_back(std::move(one));
      else
        tw_access_release(one.handle);
    }
  }

 private:
  struct UnderWay {
    tw_access* handle;
    std::unique_ptr<Memory> memory;
  };
  static std::deque<UnderWay>& abandoned() {
    static auto* const list = new std::deque<UnderWay>;  // outlives the interpreter
    return *list;
  }

  UnderWay under_way_;
};

struct Remote {
  const std::shared_ptr<RemoteHandle> remote;
  explicit Remote(tw_remote* handle) : remote(std::make_shared<RemoteHandle>(handle)) {}

  Region* expose(nb::handle data, uint32_t rights) {
    const bool writable = (rights & (TW_MAY_WRITE | TW_MAY_UPDATE)) != 0;
    auto region = std::make_unique<Region>(remote, std::make_unique<Memory>(data, writable));
    const Py_buffer& view = region->memory->view;
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_remote_expose(remote->handle, view.buf, static_cast<size_t>(view.len), rights,
                                nullptr, &region->id, &status);
    }
    check(result, status);
    return region.release();
  }

  nb::object region(uint64_t id) const {
    uint64_t size;
    uint32_t rights;
    if (!tw_remote_region(remote->handle, id, &size, &rights)) return nb::none();
    return nb::make_tuple(size, rights);
  }

  AccessHandle* start(int kind, uint64_t region, uint64_t offset, nb::handle local,
                      uint64_t operand, uint64_t expected, uint32_t immediate, nb::handle queue,
                      uint64_t token) {
    AccessHandle::sweep();
    const bool writes = kind == TW_WRITE || kind == TW_WRITE_IMMEDIATE;
    auto memory = std::make_unique<Memory>(local, !writes);
    tw_access_request request{};
    request.kind = kind;
    request.immediate = immediate;
    request.region = region;
    request.offset = offset;
    request.local = memory->view.buf;
    request.length = static_cast<uint64_t>(memory->view.len);
    request.operand = operand;
    request.expected = expected;
    tw_events* const events = queue.is_none() ? nullptr : nb::cast<Events&>(queue).handle;
    tw_access* access = nullptr;
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_remote_start(remote->handle, &request, nullptr, events, token, &access, &status);
    }
    check(result, status);
    return new AccessHandle(access, std::move(memory));
  }

  nb::object immediate(nb::handle timeout) {
    const tw_wait limit = wait_for(timeout);
    tw_status status{};
    uint32_t value = 0;
    int result;
    {
      const NoGil nogil;
      result = tw_remote_immediate(remote->handle, &limit, &value, &status);
    }
    if (result == TW_CODE_DEADLINE_EXCEEDED) return nb::none();
    check(result, status);
    return made(PyLong_FromUnsignedLong(value));
  }
};

void bind_one_sided(nb::module_& m) {
  m.attr("MAY_READ") = static_cast<int>(TW_MAY_READ);
  m.attr("MAY_WRITE") = static_cast<int>(TW_MAY_WRITE);
  m.attr("MAY_UPDATE") = static_cast<int>(TW_MAY_UPDATE);
  m.attr("READ") = static_cast<int>(TW_READ);
  m.attr("WRITE") = static_cast<int>(TW_WRITE);
  m.attr("WRITE_IMMEDIATE") = static_cast<int>(TW_WRITE_IMMEDIATE);
  m.attr("FETCH_ADD") = static_cast<int>(TW_FETCH_ADD);
  m.attr("COMPARE_SWAP") = static_cast<int>(TW_COMPARE_SWAP);

  nb::class_<Region>(m, "Region").def_ro("id", &Region::id).def("conceal", &Region::conceal);
  nb::class_<AccessHandle>(m, "Access")
      .def_prop_ro("ended", &AccessHandle::ended)
      .def("wait", &AccessHandle::wait, nb::arg("timeout").none() = nb::none());
  nb::class_<Remote>(m, "Remote")
      .def("expose", &Remote::expose, nb::arg("data"), nb::arg("rights"),
           nb::rv_policy::take_ownership)
      .def("region", &Remote::region, nb::arg("region"))
      .def("start", &Remote::start, nb::arg("kind"), nb::arg("region"), nb::arg("offset"),
           nb::arg("local"), nb::arg("operand") = 0, nb::arg("expected") = 0,
           nb::arg("immediate") = 0, nb::arg("queue").none() = nb::none(), nb::arg("token") = 0,
           nb::rv_policy::take_ownership)
      .def("immediate", &Remote::immediate, nb::arg("timeout").none() = nb::none());
}

}  // namespace
