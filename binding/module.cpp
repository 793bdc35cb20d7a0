// SPDX-License-Identifier: Apache-2.0
// The Python binding: tensorwire.h as the classes and functions of _core.pyi. It decides nothing.
#include "binding.h"

NB_MODULE(_core_of_main, m) {
  // Daemon threads may hold objects when the interpreter goes; that is no leak worth a message.
  nb::set_leak_warnings(false);
  m.attr("__version__") = tw_version();
  binding::bind_errors(m);
  binding::bind_process(m);
  binding::bind_kept(m);
  binding::bind_memory(m);
  binding::bind_shared(m);
  binding::bind_events(m);
  binding::bind_calls(m);
  binding::bind_peers(m);
  binding::bind_route(m);
  binding::bind_servers(m);
  binding::bind_groups(m);
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
