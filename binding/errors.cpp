// SPDX-License-Identifier: Apache-2.0
// Results of the C ABI as exceptions, and waits that return to Python for signals.
#include <sys/syscall.h>

#include <cmath>

#include "binding.h"

namespace binding {

namespace {

PyObject* g_status_error = nullptr;  // set once, and lives as long as the interpreter

// Only the main thread runs Python's signal handlers.
bool on_main_thread() {
  static thread_local const bool main = syscall(SYS_gettid) == getpid();
  return main;
}

int check_signals(void*) {
  nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals();
}

}  // namespace

nb::str decoded(std::string_view text) {
  const auto size = static_cast<Py_ssize_t>(text.size());
  return nb::steal<nb::str>(made(PyUnicode_DecodeUTF8(text.data(), size, "replace")).release());
}

nb::handle status_error() { return g_status_error; }

void raise(int code, const char* details) {
  nb::object text = decoded(details);
  nb::object error = made(PyObject_CallFunction(g_status_error, "iO", code, text.ptr()));
  nb::object number = made(PyLong_FromLong(code));
  if (PyObject_SetAttrString(error.ptr(), "code", number.ptr()) == 0 &&
      PyObject_SetAttrString(error.ptr(), "details", text.ptr()) == 0)
    PyErr_SetObject(g_status_error, error.ptr());
  throw nb::python_error();
}

void raise_result(int result, const tw_status& status) {
  if (result == TW_INTERRUPTED) throw nb::python_error();  // set by the signal's handler
  raise(result, status.details);
}

int64_t nanos(double seconds) {
  if (!(seconds > 0)) return 0;
  return seconds > 9e9 ? -1 : static_cast<int64_t>(std::ceil(seconds * 1e9));
}

tw_wait wait_for(nb::handle timeout) {
  tw_wait wait = wait_forever();
  if (timeout.is_none()) return wait;
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (std::isnan(seconds)) throw nb::value_error("timeout is not a number");
  wait.timeout_ns = nanos(seconds);
  return wait;
}

tw_wait wait_forever() { return {-1, on_main_thread() ? check_signals : nullptr, nullptr}; }

void bind_errors(nb::module_& m) {
  g_status_error = PyErr_NewExceptionWithDoc(
      "tensorwire._core.StatusError",
      "args == (code, details): a gRPC status code and a sentence for people.", nullptr, nullptr);
  m.attr("StatusError") = nb::borrow(g_status_error);
}

}  // namespace binding
