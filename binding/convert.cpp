// SPDX-License-Identifier: Apache-2.0
// Messages and metadata, from Python to the C ABI and back.
#include <cstring>

#include "binding.h"

namespace binding {

namespace {

const char* text(PyObject* object, size_t& size) {
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

}  // namespace

Py_buffer exported(nb::handle data, bool writable) {
  Py_buffer view;
  const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(data.ptr(), &view, flags) != 0) throw nb::python_error();
  return view;
}

void Payload::add_all(nb::handle message) {
  if (message.is_none()) return;
  present_ = true;
  if (PyBytes_Check(message.ptr())) {
    add_bytes(message);
  } else if (PyList_Check(message.ptr()) || PyTuple_Check(message.ptr())) {
    // A list could change under us while the GIL is released: its items are held by their views.
    // As many as it has, whatever the __len__ of a class of the user's says.
    const auto count = static_cast<size_t>(
        PyList_Check(message.ptr()) ? PyList_Size(message.ptr()) : PyTuple_Size(message.ptr()));
    if (count > kFew) {
      many_segments_.resize(count);
      many_views_.resize(count);
      segments_ = many_segments_.data();
      views_ = many_views_.data();
    }
    for (size_t i = 0; i < count; ++i) {
      nb::object item = nb::steal(PySequence_GetItem(message.ptr(), static_cast<Py_ssize_t>(i)));
      if (!item.is_valid()) throw nb::python_error();
      add(item);
    }
  } else {
    add(message);
  }
}

Payload::~Payload() {
  for (size_t i = 0; i < held_; ++i) PyBuffer_Release(&views_[i]);
  Py_XDECREF(bytes_);
  if (kept_) KeptObjects::get().need_thread();
}

tw_payload Payload::get() {
  static const tw_segment none{nullptr, 0};
  keeper_ = {writable_ ? nullptr : keep, this};
  if (!present_) return {nullptr, 0, nullptr, nullptr};
  return {count_ == 0 ? &none : segments_, count_, nullptr, &keeper_};
}

size_t Payload::bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < count_; ++i) sum += segments_[i].size;
  return sum;
}

void Payload::add_bytes(nb::handle bytes) {
  char* data;
  Py_ssize_t size;
  PyBytes_AsStringAndSize(bytes.ptr(), &data, &size);
  Py_INCREF(bytes.ptr());
  bytes_ = bytes.ptr();
  segments_[count_++] = {data, static_cast<size_t>(size)};
}

void Payload::add(nb::handle item) {
  if (!PyObject_CheckBuffer(item.ptr())) {
    PyErr_Format(PyExc_TypeError,
                 "a message is a bytes-like object or a list or tuple of them, not %R",
                 reinterpret_cast<PyObject*>(Py_TYPE(item.ptr())));
    throw nb::python_error();
  }
  Py_buffer& view = views_[held_];
  view = exported(item);
  ++held_;
  writable_ = writable_ || !view.readonly;
  segments_[count_++] = {view.buf, static_cast<size_t>(view.len)};
}

// Called without the GIL.
tw_owner Payload::keep(void* context) {
  auto* const self = static_cast<Payload*>(context);
  self->kept_ = true;
  auto* const kept = new Kept{nullptr, {self->views_, self->views_ + self->held_}};
  self->held_ = 0;
  kept->object = std::exchange(self->bytes_, nullptr);
  return KeptObjects::get().keep(kept);
}

Pairs::Pairs(nb::handle metadata) {
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

}  // namespace binding
