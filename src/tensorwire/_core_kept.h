// SPDX-License-Identifier: Apache-2.0
// Objects whose memory a message needs for longer than the call that sent it. The runtime lets go
// of them in threads that must not take the GIL; a thread of Python's frees them.
#pragma once

#include <Python.h>

#include <atomic>
#include <new>
#include <utility>
#include <vector>

#include "tensorwire.h"

// Included by _core.cpp only.
namespace {

struct Kept {
  PyObject* object;
  std::vector<Py_buffer> views;
  Kept* next = nullptr;

  // GIL held.
  void free() {
    for (Py_buffer& view : views) PyBuffer_Release(&view);
    Py_XDECREF(object);
    delete this;
  }
};

// One for each process; a forked child begins with a new one, and frees nothing of its parent's.
class KeptObjects {
 public:
  static KeptObjects& get() {
    static auto* const objects = new KeptObjects;  // outlives the interpreter
    return *objects;
  }

  // From any thread, without the GIL.
  tw_owner keep(Kept* kept) {
    return {[](void* context) { get().let_go(static_cast<Kept*>(context)); }, kept};
  }

  // GIL held. Has `hook`, which starts the thread that calls free_some(), called once something is
  // kept.
  void set_hook(PyObject* hook) {
    Py_XINCREF(hook);
    Py_XDECREF(std::exchange(hook_, hook));
  }
  // GIL held.
  void need_thread() {
    if (hooked_ || !hook_) return;
    PyObject *type, *value, *traceback;  // the call may have failed
    PyErr_Fetch(&type, &value, &traceback);
    PyObject* const done = PyObject_CallNoArgs(hook_);
    hooked_ = done != nullptr;  // else the next one tries again
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
  }

  // Waits, without the GIL. False once closed.
  bool wait() {
    uint64_t token;
    int closed = 0;
    const tw_wait forever{-1, nullptr, nullptr};
    (void)tw_events_wait(events_, &forever, &token, 1, &closed);
    return closed == 0;
  }
  // GIL held.
  void free_some() {
    Kept* kept = spent_.exchange(nullptr, std::memory_order_acquire);
    while (kept) std::exchange(kept, kept->next)->free();
  }
  void close() { tw_events_close(events_); }
  void reset() {
    events_ = created();
    spent_.store(nullptr, std::memory_order_relaxed);
    hooked_ = false;
  }

 private:
  void let_go(Kept* kept) {
    kept->next = spent_.load(std::memory_order_relaxed);
    while (!spent_.compare_exchange_weak(kept->next, kept, std::memory_order_release,
                                         std::memory_order_relaxed)) {
    }
    // Few of these wait at once: a queue has room for them.
    if (!kept->next) (void)tw_events_push(events_, 0);
  }

  static tw_events* created() {
    tw_events* const events = tw_events_create();
    if (!events) throw std::bad_alloc();
    return events;
  }

  tw_events* events_ = created();
  std::atomic<Kept*> spent_{nullptr};
  PyObject* hook_ = nullptr;  // guarded by the GIL, as what follows
  bool hooked_ = false;
};

}  // namespace
