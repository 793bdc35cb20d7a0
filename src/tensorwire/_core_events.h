// SPDX-License-Identifier: Apache-2.0
// Queues of what happens to calls, in the binding.
#pragma once

#include "_core_convert.h"

// Included by _core.cpp only.
namespace {

struct Events {
  tw_events* handle = there(tw_events_create());
  Events() = default;
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  ~Events() { tw_events_release(handle); }

  nb::object wait(nb::object timeout) {
    const tw_wait limit = wait_for(timeout);
    uint64_t tokens[256];
    int closed = 0;
    size_t count;
    {
      const NoGil nogil;
      count = tw_events_wait(handle, &limit, tokens, 256, &closed);
    }
    if (PyErr_Occurred()) throw nb::python_error();
    if (closed) return nb::none();
    nb::list list;
    for (size_t i = 0; i < count; ++i) list.append(tokens[i]);
    return list;
  }

  int fileno() const {
    int descriptor = -1;
    tw_status status{};
    check(tw_events_descriptor(handle, &descriptor, &status), status);
    return descriptor;
  }
};

}  // namespace
