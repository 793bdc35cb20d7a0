// SPDX-License-Identifier: Apache-2.0
// The module that Python imports, and all that knows Python.
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "backend.h"
#include "core.h"
#include "device.h"
#include "signals.h"

namespace tensorwire {

namespace py = pybind11;

const tw_table* g_core = nullptr;

namespace {

std::mutex g_mutex;  // guards what follows
std::vector<c10::weak_intrusive_ptr<Backend>> g_backends;

void start(uintptr_t address) {
  const auto* const table = reinterpret_cast<const tw_table*>(address);
  if (table->version != TW_TABLE_VERSION || table->size < sizeof(tw_table))
    throw py::value_error("this is another version of the function table");
  g_core = table;
}

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, int64_t timeout_ms) {
  auto made =
      c10::make_intrusive<Backend>(store, rank, size, std::chrono::milliseconds(timeout_ms));
  const std::lock_guard lock(g_mutex);
  std::erase_if(g_backends, [](const auto& known) { return known.expired(); });
  g_backends.emplace_back(made);
  return made;
}

// Before Python's end: its threads could not come in any more.
void shut_down() {
  std::vector<c10::weak_intrusive_ptr<Backend>> all;
  {
    const std::lock_guard lock(g_mutex);
    all.swap(g_backends);
  }
  for (const auto& known : all)
    if (const auto backend = known.lock()) backend->shutdown();
}

}  // namespace

bool on_main_thread() { return gettid() == getpid(); }

bool interrupted() {
  const py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

void throw_interruption() {
  const py::gil_scoped_acquire gil;
  throw py::error_already_set();
}

void load_nvrtc() {
  const py::gil_scoped_acquire gil;
  py::module_::import("tensorwire.torch.nvrtc").attr("load")();
}

void without_gil(void (*body)(void* context), void* context) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const py::gil_scoped_release released;
    body(context);
  } else {
    body(context);
  }
}

}  // namespace tensorwire

PYBIND11_MODULE(tensorwire_torch, module) {
  namespace py = pybind11;
  module.def("start", &tensorwire::start);
  module.def("create", &tensorwire::create, py::call_guard<py::gil_scoped_release>());
  module.def("shut_down", &tensorwire::shut_down, py::call_guard<py::gil_scoped_release>());
}
