// SPDX-License-Identifier: Apache-2.0
// What the binding converts between Python and tensorwire.h, and how it waits without the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "_core_kept.h"
#include "tensorwire.h"

namespace nb = nanobind;

// Included by _core.cpp only.
namespace {

PyObject* g_status_error = nullptr;  // StatusError; lives as long as the interpreter

// ---- errors, waits ----

// What a function of Python's has made: nothing where memory is short.
nb::object made(PyObject* object) {
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

nb::object decoded(const char* text) {
  return made(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace"));
}

[[noreturn]] void raise(int code, const char* details) {
  nb::object error = made(PyObject_CallFunction(g_status_error, "is", code, details));
  nb::object number = made(PyLong_FromLong(code));
  nb::object text = decoded(details);
  if (PyObject_SetAttrString(error.ptr(), "code", number.ptr()) == 0 &&
      PyObject_SetAttrString(error.ptr(), "details", text.ptr()) == 0)
    PyErr_SetObject(g_status_error, error.ptr());
  throw nb::python_error();
}

// Turns a result of the C ABI that is not success into an exception.
void check(int result, const tw_status& status) {
  if (result == TW_OK) return;
  if (result == TW_INTERRUPTED) throw nb::python_error();  // set by the signal's handler
  raise(result, status.details);
}

// Only the main thread runs Python's signal handlers.
bool on_main_thread() {
  static thread_local const bool main = syscall(SYS_gettid) == getpid();
  return main;
}

// The GIL is let go of for as long as this lives. Before Python 3.14 a daemon thread that asks for
// the GIL while the interpreter goes is ended by unwinding its stack, which frames of C++ answer
// with abort(), and which would run their destructors without the GIL: it stays here instead.
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;
  ~NoGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // only the unwinding: the function is C
      for (;;) pause();
    }
  }

 private:
  PyThreadState* const state_;
};

int check_signals(void*) {
  nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals();
}

int64_t nanos(double seconds) {
  if (!(seconds > 0)) return 0;
  return seconds > 9e9 ? -1 : static_cast<int64_t>(std::ceil(seconds * 1e9));
}

tw_wait wait_for(nb::handle timeout) {
  tw_wait wait{-1, on_main_thread() ? check_signals : nullptr, nullptr};
  if (timeout.is_none()) return wait;
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (std::isnan(seconds)) throw nb::value_error("timeout is not a number");
  wait.timeout_ns = nanos(seconds);
  return wait;
}

tw_wait wait_forever() { return {-1, on_main_thread() ? check_signals : nullptr, nullptr}; }

// ---- conversions ----

struct Buffer {
  tw_buffer* handle;
  size_t exports = 0;          // live views by the buffer protocol
  bool address_known = false;  // to code that nobody can ask whether it still uses it
  explicit Buffer(tw_buffer* h) : handle(h) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { tw_buffer_release(handle); }
};

// The memory of a message to send, exported for as long as this lives, or the runtime needs it.
class Payload {
 public:
  explicit Payload(nb::handle message) {
    if (message.is_none()) return;
    present_ = true;
    if (PyBytes_Check(message.ptr())) {
      add_bytes(message);
    } else if (PyList_Check(message.ptr()) || PyTuple_Check(message.ptr())) {
      // A list could change under us while the GIL is released: its items are held by their views.
      const Py_ssize_t count = PySequence_Size(message.ptr());
      segments_.reserve(static_cast<size_t>(count));
      for (Py_ssize_t i = 0; i < count; ++i) {
        nb::object item = nb::steal(PySequence_GetItem(message.ptr(), i));
        if (!item.is_valid()) throw nb::python_error();
        add(item);
      }
    } else {
      add(message);
    }
  }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  ~Payload() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    Py_XDECREF(bytes_);
    if (kept_) KeptObjects::get().need_thread();
  }

  // Memory that its owner may write again is copied rather than kept.
  tw_payload get() {
    static const tw_segment none{nullptr, 0};
    keeper_ = {writable_ ? nullptr : keep, this};
    if (!present_) return {nullptr, 0, nullptr, nullptr};
    if (bytes_) return {&one_, 1, nullptr, &keeper_};
    return {segments_.empty() ? &none : segments_.data(), segments_.size(), nullptr, &keeper_};
  }
  size_t bytes() const {
    size_t sum = bytes_ ? one_.size : 0;
    for (const tw_segment& segment : segments_) sum += segment.size;
    return sum;
  }

 private:
  void add_bytes(nb::handle bytes) {
    char* data;
    Py_ssize_t size;
    PyBytes_AsStringAndSize(bytes.ptr(), &data, &size);
    Py_INCREF(bytes.ptr());
    bytes_ = bytes.ptr();
    one_ = {data, static_cast<size_t>(size)};
  }
  void add(nb::handle item) {
    Py_buffer view;
    if (!PyObject_CheckBuffer(item.ptr())) {
      PyErr_Format(PyExc_TypeError,
                   "a message is a bytes-like object or a list or tuple of them, not %R",
                   reinterpret_cast<PyObject*>(Py_TYPE(item.ptr())));
      throw nb::python_error();
    }
    if (PyObject_GetBuffer(item.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    views_.push_back(view);
    writable_ = writable_ || !view.readonly;
    segments_.push_back({view.buf, static_cast<size_t>(view.len)});
  }

  // Called without the GIL.
  static tw_owner keep(void* context) {
    auto* const self = static_cast<Payload*>(context);
    self->kept_ = true;
    auto* const kept = new Kept{std::exchange(self->bytes_, nullptr), std::move(self->views_)};
    return KeptObjects::get().keep(kept);
  }

  bool present_ = false;
  bool writable_ = false;
  bool kept_ = false;
  tw_keeper keeper_{};
  PyObject* bytes_ = nullptr;  // the message, if that is what it is
  tw_segment one_{nullptr, 0};
  std::vector<tw_segment> segments_;
  std::vector<Py_buffer> views_;
};

// Metadata to send; keeps references to the objects whose memory it points into.
class Pairs {
 public:
  explicit Pairs(nb::handle metadata) {
    if (metadata.is_none()) return;
    for (nb::handle entry : metadata) {
      nb::object pair = nb::steal(PySequence_Tuple(entry.ptr()));
      if (!pair.is_valid()) throw nb::python_error();
      if (PyTuple_Size(pair.ptr()) != 2)
        throw nb::type_error("metadata is a sequence of (key, value)");
      tw_pair out{};
      out.key = text(PyTuple_GetItem(pair.ptr(), 0), out.key_size);
      out.value = text(PyTuple_GetItem(pair.ptr(), 1), out.value_size);
      pairs_.push_back(out);
      kept_.push_back(std::move(pair));
    }
  }
  tw_pairs get() const { return {pairs_.data(), pairs_.size()}; }

 private:
  static const char* text(PyObject* object, size_t& size) {
    Py_ssize_t length;
    const char* data;
    if (PyBytes_Check(object)) {
      char* bytes;
      PyBytes_AsStringAndSize(object, &bytes, &length);
      data = bytes;
    } else {
      data = PyUnicode_AsUTF8AndSize(object, &length);
      if (!data) {
        PyErr_Clear();
        throw nb::type_error("metadata keys are str, values str or bytes");
      }
    }
    size = static_cast<size_t>(length);
    return data;
  }

  std::vector<tw_pair> pairs_;
  std::vector<nb::object> kept_;
};

struct MetadataRelease {
  void operator()(tw_metadata* metadata) const { tw_metadata_release(metadata); }
};
using Metadata = std::unique_ptr<tw_metadata, MetadataRelease>;

nb::object metadata_list(const Metadata& metadata) {
  nb::object list = made(PyList_New(0));
  tw_metadata_each(
      metadata.get(),
      [](void* context, const tw_pair* pair) {
        const bool binary =
            pair->key_size > 4 && std::memcmp(pair->key + pair->key_size - 4, "-bin", 4) == 0;
        nb::object key =
            made(PyUnicode_FromStringAndSize(pair->key, static_cast<Py_ssize_t>(pair->key_size)));
        const auto size = static_cast<Py_ssize_t>(pair->value_size);
        nb::object value = made(binary ? PyBytes_FromStringAndSize(pair->value, size)
                                       : PyUnicode_FromStringAndSize(pair->value, size));
        nb::object entry = made(PyTuple_Pack(2, key.ptr(), value.ptr()));
        if (PyList_Append(static_cast<PyObject*>(context), entry.ptr()) != 0)
          throw nb::python_error();
      },
      list.ptr());
  return list;
}

nb::object metadata_or_none(const Metadata& metadata) {
  return metadata ? metadata_list(metadata) : nb::none();
}

// A handle that is null only for want of memory.
template <class Handle>
Handle* there(Handle* handle) {
  if (!handle) throw std::bad_alloc();
  return handle;
}

struct MessageHandle {
  tw_message* handle = nullptr;
  ~MessageHandle() {
    if (handle) tw_message_release(handle);
  }
};

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
  static size_t last = 0;  // guarded by the GIL
  const size_t size = tw_message_size(message);
  auto* const kept = static_cast<Kept*>(tw_message_posted(message));
  nb::object bytes = nb::steal(kept ? std::exchange(kept->object, nullptr) : nullptr);
  if (kept) kept->free();
  // Messages of one size are expected to go on. Those that lie in the sender's memory land nowhere.
  const bool again = std::exchange(last, size) == size;
  if (bytes.is_valid() || (again && tw_message_count(message) == 1 && !tw_message_leased(message)))
    post_bytes(size);
  return bytes;
}

// bytes when not raw, else a list of Buffer.
nb::object received(tw_message* message, bool raw) {
  const size_t count = tw_message_count(message);
  const size_t size = tw_message_size(message);
  if (raw) {
    nb::object list = made(PyList_New(static_cast<Py_ssize_t>(count)));
    for (size_t i = 0; i < count; ++i) {
      nb::object buffer =
          nb::cast(new Buffer(there(tw_message_buffer(message, i))), nb::rv_policy::take_ownership);
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

// One protocol step, as a tuple in a list.
void visit_event(void* context, const tw_trace_event* event) {
  const nb::tuple step =
      nb::make_tuple(event->time_ns, event->sent ? "sent" : "received", event->step, event->stream,
                     event->message, event->segment, event->bytes, event->id);
  PyList_Append(static_cast<PyObject*>(context), step.ptr());
}

nb::object value_of(const tw_fact& fact) {
  if (fact.kind == TW_NUMBER) return made(PyLong_FromLongLong(fact.number));
  if (fact.kind == TW_TEXT) return made(PyUnicode_FromString(fact.text));
  if (fact.kind == TW_LIST) {
    nb::list list;
    for (size_t i = 0; i < fact.count; ++i) list.append(value_of(fact.facts[i]));
    return list;
  }
  nb::dict record;
  for (size_t i = 0; i < fact.count; ++i) record[fact.facts[i].name] = value_of(fact.facts[i]);
  return record;
}

// Of a dict, which becomes the record.
void visit_record(void* context, const tw_fact* record) {
  *static_cast<nb::dict*>(context) = nb::cast<nb::dict>(value_of(*record));
}

void put_values(nb::dict& into, const tw_counter* counters, const uint64_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i) into[counters[i].name] = values[i];
}

nb::dict dict_of(const tw_statistics& found) {
  nb::dict stats;
  stats["transport"] = found.transport;
  stats["peer"] = decoded(found.peer);
  size_t known;
  put_values(stats, tw_link_counters(&known), found.values, found.count);
  if (found.crowded_reason) stats["crowded_reason"] = decoded(found.crowded_reason);
  if (found.unshared_reason) stats["unshared_reason"] = decoded(found.unshared_reason);
  nb::dict classes;
  for (size_t i = 0; i < found.class_count; ++i) {
    const tw_size_class& each = found.classes[i];
    nb::dict counted;
    counted["messages_sent"] = each.messages_sent;
    counted["bytes_sent"] = each.bytes_sent;
    counted["messages_received"] = each.messages_received;
    counted["bytes_received"] = each.bytes_received;
    classes[each.upto == UINT64_MAX ? "inf" : std::to_string(each.upto).c_str()] = counted;
  }
  stats["classes"] = classes;
  return stats;
}

// Of a dict, to which the statistics of one link go.
void visit_stats(void* context, const tw_statistics* found) {
  *static_cast<nb::dict*>(context) = dict_of(*found);
}

nb::list declared(const tw_counter* counters, size_t count) {
  nb::list list;
  for (size_t i = 0; i < count; ++i) {
    const tw_counter& each = counters[i];
    nb::dict labels;
    for (const tw_label& label : each.labels)
      if (label.name) labels[label.name] = label.value;
    nb::dict row;
    row["name"] = each.name;
    row["metric"] = each.metric;
    row["unit"] = each.unit;
    row["kind"] = each.kind == TW_COUNTER ? "counter" : "gauge";
    row["help"] = each.help;
    row["labels"] = labels;
    row["by_size"] = each.by_size != 0;
    list.append(row);
  }
  return list;
}

}  // namespace
