// SPDX-License-Identifier: Apache-2.0
// Memory that is made to be accessed by peers.
#include "binding.h"

namespace binding {

namespace {

struct SharedMemory {
  tw_shared* handle = nullptr;
  explicit SharedMemory(size_t nbytes) {
    check_without_gil([&](tw_status* status) { return tw_shared_create(nbytes, &handle, status); });
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

bool wait_any(nb::sequence words, nb::handle timeout) {
  const nb::tuple each(words);  // keeps the memories
  std::vector<tw_shared_word> wanted;
  wanted.reserve(each.size());
  for (nb::handle one : each) {
    const auto word = nb::cast<nb::tuple>(one);
    if (word.size() != 4)
      throw nb::type_error("a word is a tuple of memory, offset, at_least and nudges");
    wanted.push_back({nb::cast<SharedMemory&>(word[0]).handle, nb::cast<uint64_t>(word[1]),
                      nb::cast<uint64_t>(word[2]), nb::cast<uint32_t>(word[3])});
  }
  const tw_wait limit = wait_for(timeout);
  Untold status;
  const int result = without_gil(
      [&] { return tw_shared_wait_any(wanted.data(), wanted.size(), &limit, &status); });
  if (result == TW_CODE_DEADLINE_EXCEEDED) return false;
  check(result, status);
  return true;
}

}  // namespace

void bind_shared(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_to)},
                                {0, nullptr}};
  nb::class_<SharedMemory>(m, "SharedMemory", nb::type_slots(slots))
      .def(nb::init<size_t>(), nb::arg("nbytes"))
      .def_prop_ro("nbytes", [](const SharedMemory& s) { return tw_shared_size(s.handle); })
      .def_prop_ro("nudges", [](const SharedMemory& s) { return tw_shared_nudges(s.handle); })
      .def("nudge", [](const SharedMemory& s) { tw_shared_nudge(s.handle); });
  m.def("wait_any", wait_any, nb::arg("words"), nb::arg("timeout").none() = nb::none());
}

}  // namespace binding
