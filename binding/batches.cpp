// SPDX-License-Identifier: Apache-2.0
// One-sided operations that are prepared once and begun together, again and again.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "binding.h"

namespace binding {

namespace {

// kind, region, offset, local offset, length, stride, local stride, count.
using Row = std::array<uint64_t, 8>;
constexpr size_t kMaxRows = 1 << 24;

// Local offsets count as if the memories lay end to end.
struct Batch {
  tw_batch* handle = nullptr;
  std::vector<Py_buffer> memories;
  std::vector<uint64_t> ends;

  explicit Batch(const std::vector<nb::object>& local) {
    memories.reserve(local.size());
    ends.reserve(local.size());
    uint64_t end = 0;
    for (const nb::object& each : local) {
      Py_buffer view;
      if (PyObject_GetBuffer(each.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) {
        release();  // of an object that is not made, no destructor runs
        throw nb::python_error();
      }
      memories.push_back(view);
      ends.push_back(end += static_cast<uint64_t>(view.len));
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (handle) tw_batch_release(handle);
    release();
  }

  // Where local bytes lie; null: not in one memory.
  char* at(uint64_t begin, uint64_t end, const Py_buffer** memory) const {
    const auto found = std::upper_bound(ends.begin(), ends.end(), begin);
    if (found == ends.end() || end > *found) return nullptr;
    *memory = &memories[static_cast<size_t>(found - ends.begin())];
    const uint64_t first = *found - static_cast<uint64_t>((*memory)->len);
    return static_cast<char*>((*memory)->buf) + (begin - first);
  }

 private:
  void release() {
    for (Py_buffer& each : memories) PyBuffer_Release(&each);
  }
};

// One object with the buffer protocol, or a list or tuple of them. To export the memory of one may
// run Python's code, which may change the list: so they are kept.
std::vector<nb::object> memories_of(nb::handle local) {
  if (!PyList_Check(local.ptr()) && !PyTuple_Check(local.ptr())) return {nb::borrow(local)};
  std::vector<nb::object> each;
  for (const nb::handle one : nb::borrow<nb::sequence>(local)) each.push_back(nb::borrow(one));
  return each;
}

[[noreturn]] void wrong(const char* format, size_t row) {
  PyErr_Format(PyExc_ValueError, format, row);
  throw nb::python_error();
}

// Bytes of local memory from the first to the last that a row touches; false: too many to count.
bool extent(const Row& row, uint64_t& end) {
  const auto [kind, region, offset, local, length, stride, local_stride, count] = row;
  uint64_t last = 0;
  return !__builtin_mul_overflow(count - 1, local_stride, &last) &&
         !__builtin_add_overflow(last, local, &last) && !__builtin_add_overflow(last, length, &end);
}

struct Rows {
  Py_buffer view;
  size_t count;

  explicit Rows(nb::handle rows) : view(exported(rows)) {
    const auto bytes = static_cast<size_t>(view.len);
    count = bytes / sizeof(Row);
    if (view.itemsize == sizeof(uint64_t) && bytes % sizeof(Row) == 0 && count <= kMaxRows) return;
    PyBuffer_Release(&view);
    PyErr_Format(PyExc_ValueError,
                 "rows must be an array of uint64 with 8 columns and at most %zu rows", kMaxRows);
    throw nb::python_error();
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  ~Rows() { PyBuffer_Release(&view); }

  Row at(size_t index) const {
    Row row;
    std::memcpy(row.data(), static_cast<const char*>(view.buf) + index * sizeof(Row), sizeof(Row));
    return row;
  }
};

Batch* prepare(Peer& peer, nb::handle local, nb::handle rows_of,
               std::optional<std::tuple<uint64_t, uint64_t, uint64_t, bool>> last) {
  const Rows rows(rows_of);
  auto batch = std::make_unique<Batch>(memories_of(local));
  std::vector<tw_access_request> requests;
  requests.reserve(rows.count);
  for (size_t i = 0; i < rows.count; ++i) {
    const Row row = rows.at(i);
    if (row[0] != TW_READ && row[0] != TW_WRITE) wrong("row %zu is neither READ nor WRITE", i);
    if (row[7] == 0 || row[4] == 0) continue;
    uint64_t end;
    const Py_buffer* memory = nullptr;
    char* const begin = extent(row, end) ? batch->at(row[3], end, &memory) : nullptr;
    if (!begin) wrong("row %zu is not inside the local memory", i);
    if (row[0] == TW_READ && memory->readonly) {
      PyErr_Format(PyExc_BufferError, "row %zu reads into memory that must not be written", i);
      throw nb::python_error();
    }
    tw_access_request request{};
    request.kind = static_cast<int32_t>(row[0]);
    request.region = row[1];
    request.offset = row[2];
    request.local = begin;
    request.length = row[4];
    request.stride = row[5];
    request.local_stride = row[6];
    request.count = row[7];
    requests.push_back(request);
  }
  tw_signal signal{};
  if (last)
    signal = {std::get<0>(*last), std::get<1>(*last), std::get<2>(*last), std::get<3>(*last)};
  check_without_gil([&](tw_status* status) {
    return tw_peer_prepare(peer.handle, requests.data(), requests.size(), last ? &signal : nullptr,
                           &batch->handle, status);
  });
  return batch.release();
}

Access* start_batch(nb::handle self, nb::handle queue, uint64_t token,
                    std::optional<uint64_t> value) {
  const Batch& batch = nb::cast<const Batch&>(self);
  tw_events* const events = queue.is_none() ? nullptr : nb::cast<Events&>(queue).handle;
  // Whoever drops the batch meanwhile leaves its memory exported.
  auto* const kept = new Kept{self.inc_ref().ptr(), {}};
  const tw_owner owner = KeptObjects::get().keep(kept);
  tw_access* access = nullptr;
  Untold status;
  const int result = without_gil([&] {
    return tw_batch_start(batch.handle, value ? &*value : nullptr, &owner, events, token, &access,
                          &status);
  });
  KeptObjects::get().free_some();
  check(result, status);
  KeptObjects::get().need_thread();
  return new Access(access);
}

}  // namespace

void bind_batches(nb::module_& m, nb::class_<Peer>& peer) {
  nb::class_<Batch>(m, "Batch")
      .def_prop_ro("nbytes", [](const Batch& b) { return tw_batch_size(b.handle); })
      .def_prop_ro("pieces", [](const Batch& b) { return tw_batch_runs(b.handle); })
      .def("start", start_batch, nb::arg("queue").none() = nb::none(), nb::arg("token") = 0,
           nb::arg("value").none() = nb::none(), nb::rv_policy::take_ownership);
  peer.def("prepare", prepare, nb::arg("local"), nb::arg("rows"),
           nb::arg("signal").none() = nb::none(), nb::rv_policy::take_ownership);
}

}  // namespace binding
