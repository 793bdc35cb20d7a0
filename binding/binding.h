// SPDX-License-Identifier: Apache-2.0
// What the units of the binding share. Each of them binds some of tensorwire.h; none guards its
// state by the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorwire.h"

namespace nb = nanobind;

namespace binding {

// ---- errors and waits: errors.cpp ----

// What a function of Python's has made: nothing where memory is short.
inline nb::object made(PyObject* object) {
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

nb::str decoded(std::string_view text);

// StatusError.
nb::handle status_error();
[[noreturn]] void raise(int code, const char* details);
[[noreturn]] void raise_result(int result, const tw_status& status);

// Before a call of the C ABI has told anything: nothing is written but where its details end.
struct Untold : tw_status {
  Untold() {
    code = TW_OK;
    details[0] = '\0';
  }
};

// Turns a result of the C ABI that is not success into an exception.
inline void check(int result, const tw_status& status) {
  if (result != TW_OK) raise_result(result, status);
}

// A handle that is null only for want of memory.
template <class Handle>
Handle* there(Handle* handle) {
  if (!handle) throw std::bad_alloc();
  return handle;
}

// An object of Python's with a T in its own memory, which gets what `handle()` gives.
template <class T, class Handle>
nb::object instance(Handle&& handle) {
  nb::object object = nb::inst_alloc(nb::type<T>());
  new (nb::inst_ptr<T>(object)) T(handle());
  nb::inst_mark_ready(object);
  return object;
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

template <class Function>
auto without_gil(Function&& function) {
  const NoGil nogil;
  return function();
}

// The same for what tells a status, which is checked.
template <class Function>
void check_without_gil(Function&& function) {
  Untold status;
  check(without_gil([&] { return function(&status); }), status);
}

int64_t nanos(double seconds);
tw_wait wait_for(nb::handle timeout);  // seconds, or None
tw_wait wait_forever();

// ---- objects that a message needs for longer than the call that sent it: kept.cpp ----

struct Kept {
  PyObject* object;
  std::vector<Py_buffer> views;
  Kept* next = nullptr;

  void free();  // GIL held
};

// The runtime lets go of them in threads that must not take the GIL; a thread of Python's frees
// them. One for each process; a forked child begins with a new one, and frees nothing of its
// parent's.
class KeptObjects {
 public:
  static KeptObjects& get();

  // From any thread, without the GIL.
  tw_owner keep(Kept* kept);

  // GIL held. Has `hook`, which starts the thread that calls free_some(), called once something is
  // kept.
  void set_hook(PyObject* hook);
  // GIL held.
  void need_thread() {
    if (!hooked_.load(std::memory_order_relaxed)) call_hook();
  }

  // Waits, without the GIL. False once closed.
  bool wait();
  // GIL held.
  void free_some();
  void close();
  void reset();

 private:
  KeptObjects();
  void call_hook();
  void let_go(Kept* kept);

  tw_events* events_;
  std::atomic<Kept*> spent_{nullptr};
  std::atomic<bool> hooked_{false};
  std::mutex mutex_;  // guards hook_
  PyObject* hook_ = nullptr;
};

// ---- conversions: convert.cpp ----

// The memory of a message to send, exported for as long as this lives, or the runtime needs it.
class Payload {
 public:
  explicit Payload(nb::handle message) : Payload() { add_all(message); }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  ~Payload();

  // Memory that its owner may write again is copied rather than kept.
  tw_payload get();
  size_t bytes() const;

 private:
  static constexpr size_t kFew = 4;
  Payload() {}  // not = default, which would write all of it
  void add_all(nb::handle message);
  void add_bytes(nb::handle bytes);
  void add(nb::handle item);
  static tw_owner keep(void* context);

  bool present_ = false;
  bool writable_ = false;
  bool kept_ = false;
  tw_keeper keeper_{};
  PyObject* bytes_ = nullptr;  // the message, if that is what it is
  size_t count_ = 0;           // of segments
  size_t held_ = 0;            // of views
  tw_segment* segments_ = few_segments_;
  Py_buffer* views_ = few_views_;
  // Only those in use are written: a small message would notice the others.
  tw_segment few_segments_[kFew];
  Py_buffer few_views_[kFew];
  std::vector<tw_segment> many_segments_;
  std::vector<Py_buffer> many_views_;
};

// Metadata to send; keeps references to the objects whose memory it points into.
class Pairs {
 public:
  explicit Pairs(nb::handle metadata);
  tw_pairs get() const { return {pairs_.data(), pairs_.size()}; }

 private:
  std::vector<tw_pair> pairs_;
  std::vector<nb::object> kept_;
};

struct MetadataRelease {
  void operator()(tw_metadata* metadata) const { tw_metadata_release(metadata); }
};
using Metadata = std::unique_ptr<tw_metadata, MetadataRelease>;

nb::object metadata_list(const Metadata& metadata);
inline nb::object metadata_or_none(const Metadata& metadata) {
  return metadata ? metadata_list(metadata) : nb::none();
}

// An object's memory. The view is handed on by whoever takes it over.
Py_buffer exported(nb::handle data, bool writable = false);

inline nb::bytes as_bytes(const void* data, size_t size) {
  return nb::bytes(static_cast<const char*>(data), size);
}

// The memory of bytes that have this size, else ValueError.
template <size_t kSize>
const uint8_t* exactly(const nb::bytes& bytes, const char* what) {
  if (bytes.size() != kSize) {
    PyErr_Format(PyExc_ValueError, "%s must have %zu bytes, not %zu", what, kSize, bytes.size());
    throw nb::python_error();
  }
  return reinterpret_cast<const uint8_t*>(bytes.c_str());
}

// ---- facts: facts.cpp ----

// Of a dict, which becomes the record.
void visit_record(void* context, const tw_fact* record);
void put_values(nb::dict& into, const tw_counter* counters, const uint64_t* values, size_t count);
nb::dict dict_of(const tw_statistics& found);
// Of a dict, to which the statistics of one link go.
void visit_stats(void* context, const tw_statistics* found);
nb::list declared(const tw_counter* counters, size_t count);
// One protocol step, as a tuple in a list.
void visit_event(void* context, const tw_trace_event* event);

// ---- what one unit has for others ----

struct CallRelease {
  void operator()(tw_call* call) const { tw_call_release(call); }
};
using ClientCallHandle = std::unique_ptr<tw_client_call, CallRelease>;
using ServerCallHandle = std::unique_ptr<tw_server_call, CallRelease>;
// calls.cpp: all of the details of a call that has ended.
nb::str details_of(const tw_client_call* call);

struct MessageHandle {
  tw_message* handle = nullptr;
  ~MessageHandle() {
    if (handle) tw_message_release(handle);
  }
};

// memory.cpp: bytes when not raw, else a list of Buffer.
nb::object received(tw_message* message, bool raw);

// events.cpp
struct Events {
  tw_events* const handle = there(tw_events_create());
  Events() = default;
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  ~Events() { tw_events_release(handle); }
};

// calls.cpp, peers.cpp: objects that own what they are given.
nb::object client_call(ClientCallHandle call);
nb::object server_call(ServerCallHandle call);
nb::object process(tw_peer* peer);

struct PeerRelease {
  void operator()(tw_peer* peer) const { tw_peer_release(peer); }
};
using PeerHandle = std::unique_ptr<tw_peer, PeerRelease>;

// peers.cpp. What connect() has made closes its link when it goes.
struct Peer {
  tw_peer* const handle;
  tw_link* const link;
  explicit Peer(tw_peer* shared) : handle(shared), link(nullptr) {}
  explicit Peer(tw_link* made) : handle(made), link(made) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    if (link)
      tw_link_release(link);
    else
      tw_peer_release(handle);
  }
};

// access.cpp. An operation under way. Its local memory is kept until it has ended, whoever still
// knows of it.
struct Access {
  tw_access* const handle;
  explicit Access(tw_access* h) : handle(h) {}
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
  ~Access() { tw_access_release(handle); }

  bool ended() const { return tw_access_ended(handle) != 0; }
  bool wait(nb::handle timeout);
};

// servers.cpp
struct Server {
  tw_server* handle = nullptr;
  explicit Server(int64_t max_message) {
    Untold status;
    check(tw_server_create(max_message, &handle, &status), status);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    if (handle) tw_server_release(handle);
  }
};

void bind_errors(nb::module_& m);
void bind_process(nb::module_& m);
void bind_kept(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_shared(nb::module_& m);
void bind_events(nb::module_& m);
void bind_access(nb::module_& m, nb::class_<Peer>& peer);
void bind_blocking_access(nb::class_<Peer>& peer);
void bind_batches(nb::module_& m, nb::class_<Peer>& peer);
void bind_tagged(nb::module_& m, nb::class_<Peer>& peer);
void bind_calls(nb::module_& m);
void bind_peers(nb::module_& m);
void bind_route(nb::module_& m);
void bind_servers(nb::module_& m);
void bind_groups(nb::module_& m);

}  // namespace binding
