// SPDX-License-Identifier: Apache-2.0
// Memory of the runtime: the arena, and what was received.
#include <nanobind/stl/pair.h>

#include <cstring>
#include <deque>

#include "binding.h"

namespace binding {

namespace {

// Who has been given the memory is counted, so that separate() comes before all of them or not at
// all, whatever other threads do meanwhile.
class Buffer {
 public:
  explicit Buffer(tw_buffer* handle) : handle_(handle) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { tw_buffer_release(handle_); }

  tw_buffer* handle() const { return handle_; }

  // Code that knows the address cannot be asked whether it still uses it: it is counted for ever.
  uintptr_t address() {
    enter();
    tw_buffer_expose(handle_);
    return reinterpret_cast<uintptr_t>(tw_buffer_data(handle_));
  }
  int export_to(PyObject* self, Py_buffer* view, int flags) {
    enter();
    tw_buffer_expose(handle_);
    const int result = PyBuffer_FillInfo(view, self, tw_buffer_data(handle_),
                                         static_cast<Py_ssize_t>(tw_buffer_size(handle_)),
                                         tw_buffer_readonly(handle_), flags);
    if (result != 0) leave();
    return result;
  }
  void leave() { users_.fetch_sub(1, std::memory_order_release); }

  void separate() {
    int64_t nobody = 0;
    if (!users_.compare_exchange_strong(nobody, kSeparating, std::memory_order_acquire))
      raise(TW_CODE_FAILED_PRECONDITION,
            "the buffer's memory is in use already: separate it first");
    Untold status;
    const int result = tw_buffer_separate(handle_, &status);
    users_.store(0, std::memory_order_release);
    users_.notify_all();
    check(result, status);
  }

 private:
  static constexpr int64_t kSeparating = -1;

  void enter() {
    int64_t users = users_.load(std::memory_order_relaxed);
    do {
      while (users == kSeparating) {  // in another thread, which needs no GIL to go on
        users_.wait(kSeparating, std::memory_order_relaxed);
        users = users_.load(std::memory_order_relaxed);
      }
    } while (!users_.compare_exchange_weak(users, users + 1, std::memory_order_acquire));
  }

  tw_buffer* const handle_;
  std::atomic<int64_t> users_{0};
};

class Quota {
 public:
  explicit Quota(tw_quota* handle) : handle_(handle) {}
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;
  ~Quota() { tw_quota_release(handle_); }
  tw_quota* handle() const { return handle_; }

 private:
  tw_quota* const handle_;
};

int buffer_export(PyObject* self, Py_buffer* view, int flags) {
  return nb::inst_ptr<Buffer>(self)->export_to(self, view, flags);
}

void buffer_unexport(PyObject* self, Py_buffer*) { nb::inst_ptr<Buffer>(self)->leave(); }

struct Exported {
  Py_buffer view;
  explicit Exported(nb::handle data, bool writable = false) : view(exported(data, writable)) {}
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;
  ~Exported() { PyBuffer_Release(&view); }
};

struct Pair {
  Exported to, from;
  Pair(nb::handle target, nb::handle source) : to(target, true), from(source) {
    if (to.view.len != from.view.len)
      throw nb::value_error(("memory of " + std::to_string(from.view.len) + " bytes is copied to " +
                             std::to_string(to.view.len))
                                .c_str());
  }
};

void copy_all(const nb::sequence& pairs) {
  std::deque<Pair> all;
  for (const nb::handle pair : pairs) {
    const auto [to, from] = nb::cast<std::pair<nb::object, nb::object>>(pair);
    all.emplace_back(to, from);
  }
  std::vector<tw_copying> copies;
  copies.reserve(all.size());
  for (const auto& [to, from] : all)
    if (to.view.buf != from.view.buf)
      copies.push_back({to.view.buf, from.view.buf, static_cast<size_t>(to.view.len)});
  const nb::gil_scoped_release released;
  tw_copy_all(copies.data(), copies.size());
}

// From this size on others may have the GIL while a message is copied, which takes 30 us and more.
constexpr size_t kCopiedWithoutGil = 1 << 20;

// Readies memory for the next message of this size, to be handed out as it is.
void post_bytes(size_t size) {
  PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (!bytes) return PyErr_Clear();  // the next message is copied
  auto* const kept = new (std::nothrow) Kept{bytes, {}};
  if (!kept) return Py_DECREF(bytes);
  const tw_owner owner = KeptObjects::get().keep(kept);
  tw_post(PyBytes_AsString(bytes), size, &owner);
  KeptObjects::get().need_thread();
}

// The object into which the message was received; else nothing.
nb::object posted(tw_message* message) {
  static std::atomic<size_t> last{0};
  const size_t size = tw_message_size(message);
  auto* const kept = static_cast<Kept*>(tw_message_posted(message));
  nb::object bytes = nb::steal(kept ? std::exchange(kept->object, nullptr) : nullptr);
  if (kept) kept->free();
  // Messages of one size are expected to go on. Those that lie in the sender's memory land nowhere.
  const bool again = last.exchange(size, std::memory_order_relaxed) == size;
  if (bytes.is_valid() || (again && tw_message_count(message) == 1 && !tw_message_leased(message)))
    post_bytes(size);
  return bytes;
}

}  // namespace

nb::object received(tw_message* message, bool raw) {
  const size_t count = tw_message_count(message);
  const size_t size = tw_message_size(message);
  if (raw) {
    nb::object list = made(PyList_New(static_cast<Py_ssize_t>(count)));
    for (size_t i = 0; i < count; ++i) {
      nb::object buffer = instance<Buffer>([&] { return there(tw_message_buffer(message, i)); });
      PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), buffer.release().ptr());
    }
    return list;
  }
  if (size >= TW_SMALLEST_POSTED) {
    if (nb::object bytes = posted(message); bytes.is_valid()) return bytes;
  }
  if (count == 1 && size < kCopiedWithoutGil) {
    const tw_segment segment = tw_message_segment(message, 0);
    return made(PyBytes_FromStringAndSize(static_cast<const char*>(segment.data),
                                          static_cast<Py_ssize_t>(size)));
  }
  nb::object bytes = made(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  void* const to = PyBytes_AsString(bytes.ptr());
  if (size < kCopiedWithoutGil) {
    tw_message_copy(message, to);
  } else {
    const NoGil nogil;  // nobody else knows the object yet
    tw_message_copy(message, to);
  }
  return bytes;
}

void bind_memory(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(buffer_export)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(buffer_unexport)},
                                {0, nullptr}};
  nb::class_<Buffer>(m, "Buffer", nb::type_slots(slots))
      .def_prop_ro("nbytes", [](const Buffer& b) { return tw_buffer_size(b.handle()); })
      .def_prop_ro("address", &Buffer::address)
      .def_prop_ro("readonly", [](const Buffer& b) { return tw_buffer_readonly(b.handle()) != 0; })
      .def_prop_ro("leased", [](const Buffer& b) { return tw_buffer_leased(b.handle()) != 0; })
      .def("separate", &Buffer::separate)
      .def("__len__", [](const Buffer& b) { return tw_buffer_size(b.handle()); });

  nb::class_<Quota>(m, "Quota")
      .def("__init__",
           [](Quota* self, size_t bytes) {
             tw_quota* const handle = tw_quota_create(bytes);
             if (!handle) throw std::bad_alloc();
             new (self) Quota(handle);
           })
      .def_prop_ro("leased", [](const Quota& q) { return tw_quota_leased(q.handle()); })
      .def_prop_ro("copied", [](const Quota& q) { return tw_quota_copied(q.handle()); });

  m.def(
      "allocate",
      [](size_t nbytes, nb::object timeout, const Quota* quota) {
        const tw_wait wait = wait_for(timeout);
        tw_buffer* buffer = nullptr;
        check_without_gil([&](tw_status* status) {
          return tw_allocate(quota ? quota->handle() : nullptr, nbytes, &wait, &buffer, status);
        });
        return new Buffer(buffer);
      },
      nb::arg("nbytes"), nb::arg("timeout").none() = 0.0, nb::arg("quota").none() = nb::none(),
      nb::rv_policy::take_ownership);
  m.def("publish", [](nb::handle data) {
    const Exported exported(data);
    return tw_publish(exported.view.buf, static_cast<size_t>(exported.view.len)) != 0;
  });
  m.def("is_published", [](nb::handle data) {
    const Exported exported(data);
    return tw_published(exported.view.buf, static_cast<size_t>(exported.view.len)) != 0;
  });
  m.def("copy_all", copy_all, nb::arg("pairs"));
  m.def("trim", [] {
    const nb::gil_scoped_release released;
    tw_trim();
  });
  m.def("arena_stats", [] {
    nb::dict dict;
    size_t count;
    const tw_counter* const counters = tw_memory_counters(&count);
    std::vector<uint64_t> values(count);
    put_values(dict, counters, values.data(), tw_arena(values.data(), count));
    return dict;
  });
  m.def("memory_counters", [] {
    size_t count;
    const tw_counter* const counters = tw_memory_counters(&count);
    return declared(counters, count);
  });
}

}  // namespace binding
