// SPDX-License-Identifier: Apache-2.0
// Queues of what happens to calls.
#include "binding.h"

namespace binding {

namespace {

nb::object wait_for_events(Events& queue, nb::handle timeout) {
  const tw_wait limit = wait_for(timeout);
  uint64_t tokens[256];
  int closed = 0;
  const size_t count =
      without_gil([&] { return tw_events_wait(queue.handle, &limit, tokens, 256, &closed); });
  if (PyErr_Occurred()) throw nb::python_error();
  if (closed) return nb::none();
  nb::list list;
  for (size_t i = 0; i < count; ++i) list.append(tokens[i]);
  return list;
}

}  // namespace

void bind_events(nb::module_& m) {
  nb::class_<Events>(m, "EventQueue")
      .def(nb::init<>())
      .def("wait", wait_for_events, nb::arg("timeout").none() = nb::none())
      .def("fileno",
           [](const Events& queue) {
             int descriptor = -1;
             Untold status;
             check(tw_events_descriptor(queue.handle, &descriptor, &status), status);
             return descriptor;
           })
      .def("close", [](Events& queue) { tw_events_close(queue.handle); });
  m.attr("ON_END") = static_cast<int>(TW_ON_END);
  m.attr("ON_CUT") = static_cast<int>(TW_ON_CUT);
  m.attr("ON_MESSAGE") = static_cast<int>(TW_ON_MESSAGE);
  m.attr("ON_ROOM") = static_cast<int>(TW_ON_ROOM);
  m.attr("ON_INITIAL") = static_cast<int>(TW_ON_INITIAL);
}

}  // namespace binding
