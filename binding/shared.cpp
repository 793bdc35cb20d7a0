// SPDX-License-Identifier: Apache-2.0
// Memory that is made to be accessed by peers.
#include "binding.h"

namespace binding {

namespace {

struct SharedMemory {
  tw_shared* handle = nullptr;
  explicit SharedMemory(size_t nbytes) {
    tw_status status{};
    int result;
    {
      const NoGil nogil;
      result = tw_shared_create(nbytes, &handle, &status);
    }
    check(result, status);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() {
    if (handle) tw_shared_release(handle);
  }
};

// Whoever has a view keeps the object, hence the memory.
int export_to(PyObject* self, Py_buffer* view, int flags) {
  tw_shared* const handle = nb::inst_ptr<SharedMemory>(self)->handle;
  return PyBuffer_FillInfo(view, self, tw_shared_data(handle),
                           static_cast<Py_ssize_t>(tw_shared_size(handle)), 0, flags);
}

}  // namespace

void bind_shared(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_to)},
                                {0, nullptr}};
  nb::class_<SharedMemory>(m, "SharedMemory", nb::type_slots(slots))
      .def(nb::init<size_t>(), nb::arg("nbytes"))
      .def_prop_ro("nbytes", [](const SharedMemory& s) { return tw_shared_size(s.handle); });
}

}  // namespace binding
