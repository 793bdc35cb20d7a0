// SPDX-License-Identifier: Apache-2.0
// Objects whose memory a message or an operation needs for longer than the call that began it.
#include "binding.h"

namespace binding {

namespace {

tw_events* created() { return there(tw_events_create()); }

}  // namespace

void Kept::free() {
  for (Py_buffer& view : views) PyBuffer_Release(&view);
  Py_XDECREF(object);
  delete this;
}

KeptObjects& KeptObjects::get() {
  static auto* const objects = new KeptObjects;  // outlives the interpreter
  return *objects;
}

KeptObjects::KeptObjects() : events_(created()) {}

tw_owner KeptObjects::keep(Kept* kept) {
  return {[](void* context) { get().let_go(static_cast<Kept*>(context)); }, kept};
}

void KeptObjects::set_hook(PyObject* hook) {
  Py_XINCREF(hook);
  {
    const std::lock_guard lock(mutex_);
    std::swap(hook, hook_);
  }
  Py_XDECREF(hook);
}

void KeptObjects::call_hook() {
  nb::object hook;
  {
    const std::lock_guard lock(mutex_);
    if (!hook_ || hooked_.exchange(true)) return;
    hook = nb::borrow(hook_);
  }
  PyObject *type, *value, *traceback;  // the call may have failed
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* const done = PyObject_CallNoArgs(hook.ptr());
  if (!done) hooked_ = false;  // the next one tries again
  Py_XDECREF(done);
  PyErr_Restore(type, value, traceback);
}

bool KeptObjects::wait() {
  uint64_t token;
  int closed = 0;
  const tw_wait forever{-1, nullptr, nullptr};
  (void)tw_events_wait(events_, &forever, &token, 1, &closed);
  return closed == 0;
}

void KeptObjects::free_some() {
  if (!spent_.load(std::memory_order_relaxed)) return;
  Kept* kept = spent_.exchange(nullptr, std::memory_order_acquire);
  while (kept) std::exchange(kept, kept->next)->free();
}

void KeptObjects::close() { tw_events_close(events_); }

void KeptObjects::reset() {
  new (&mutex_) std::mutex;  // of the threads that the parent had, none is here to give it back
  events_ = created();
  spent_.store(nullptr, std::memory_order_relaxed);
  hooked_ = false;
}

void KeptObjects::let_go(Kept* kept) {
  Kept* before = spent_.load(std::memory_order_relaxed);
  do {
    kept->next = before;
  } while (!spent_.compare_exchange_weak(before, kept, std::memory_order_release,
                                         std::memory_order_relaxed));
  // It may be freed from now on. Few of these wait at once: a queue has room for them.
  if (!before) (void)tw_events_push(events_, 0);
}

void bind_kept(nb::module_& m) {
  m.def("when_kept", [](nb::handle hook) { KeptObjects::get().set_hook(hook.ptr()); });
  m.def("free_kept", [] {
    const bool open = without_gil([] { return KeptObjects::get().wait(); });
    KeptObjects::get().free_some();
    return open;
  });
  m.def("close_kept", [] { KeptObjects::get().close(); });
  m.def("reset_kept", [] { KeptObjects::get().reset(); });
}

}  // namespace binding
