// SPDX-License-Identifier: Apache-2.0
// Groups of ranks, and collectives.
#include <exception>
#include <mutex>
#include <vector>

#include "binding.h"

namespace binding {

namespace {

// A store of Python's, as the C ABI sees it. What it raises is raised again by whoever asked.
class ForeignStore {
 public:
  explicit ForeignStore(nb::handle store) : store_(store) {}
  tw_store get() { return {this, set, get}; }
  void rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  template <class Work>
  int run(tw_status* status, Work&& work) {
    const nb::gil_scoped_acquire gil;
    try {
      work();
      return TW_OK;
    } catch (nb::python_error& error) {
      // One that is a GroupError as well says that the store is not there, and not that a key is
      // not there yet.
      if (error.matches(PyExc_TimeoutError) && !error.matches(PyExc_RuntimeError))
        return TW_CODE_DEADLINE_EXCEEDED;
      raised_ = std::current_exception();
    } catch (...) {
      raised_ = std::current_exception();
    }
    status->code = TW_CODE_UNKNOWN;
    return TW_CODE_UNKNOWN;
  }

  static int set(void* context, const char* key, const void* value, size_t size,
                 tw_status* status) {
    auto& self = *static_cast<ForeignStore*>(context);
    return self.run(status, [&] { self.store_.attr("set")(key, as_bytes(value, size)); });
  }
  static int get(void* context, const char* key, int64_t timeout_ns, tw_give give, void* sink,
                 tw_status* status) {
    auto& self = *static_cast<ForeignStore*>(context);
    return self.run(status, [&] {
      const double seconds = static_cast<double>(timeout_ns) * 1e-9;
      const nb::object value = self.store_.attr("get")(key, seconds);
      Py_buffer bytes = exported(value);
      give(sink, bytes.buf, static_cast<size_t>(bytes.len));
      PyBuffer_Release(&bytes);
    });
  }

  const nb::handle store_;
  std::exception_ptr raised_;
};

// Memory of an array for the length of an operation; nothing where it is None.
class Contents {
 public:
  Contents(nb::handle data, bool writable) {
    if (data.is_none()) return;
    view_ = exported(data, writable);
    present_ = true;
  }
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;
  ~Contents() {
    if (present_) PyBuffer_Release(&view_);
  }
  void* data() const { return present_ ? view_.buf : nullptr; }
  size_t size() const { return present_ ? static_cast<size_t>(view_.len) : 0; }

 private:
  Py_buffer view_{};
  bool present_ = false;
};

using Runs = std::vector<tw_run>;

nb::list statistics_of(const tw_group* group) {
  nb::list rows;
  tw_group_statistics(
      group,
      [](void* to, const char* operation, const char* way, uint64_t operations, uint64_t bytes) {
        static_cast<nb::list*>(to)->append(nb::make_tuple(operation, way, operations, bytes));
      },
      &rows);
  return rows;
}

struct Group {
  tw_group* handle = nullptr;

  Group(nb::handle store, int rank, int size, const char* host, bool deterministic,
        nb::handle timeout) {
    ForeignStore foreign(store);
    const tw_store asked = foreign.get();
    const tw_wait wait = wait_for(timeout);
    Untold status;
    const int result = without_gil([&] {
      return tw_group_join(&asked, rank, size, host, deterministic, &wait, &handle, &status);
    });
    if (result != TW_OK) foreign.rethrow();
    check(result, status);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { leave(); }

  // Operations under way keep it until they have ended.
  void leave() {
    tw_group* left;
    {
      const std::lock_guard lock(mutex_);
      left = users_ == 0 ? std::exchange(handle, nullptr) : nullptr;
      leaving_ = true;
    }
    if (!left) return;
    const NoGil nogil;
    tw_group_release(left);
  }

  class Use {
   public:
    explicit Use(Group& group) : group_(group) {
      // Python's functions are called without the lock: they may wait for the other threads, of
      // which one may wait for the lock.
      if (!group.enter()) raise(TW_CODE_FAILED_PRECONDITION, "this process has left the group");
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      bool last;
      {
        const std::lock_guard lock(group_.mutex_);
        last = --group_.users_ == 0 && group_.leaving_;
      }
      if (last) group_.leave();
    }
    tw_group* get() const { return group_.handle; }

   private:
    Group& group_;
  };

  int rank() { return tw_group_rank(Use(*this).get()); }
  int size() { return tw_group_size(Use(*this).get()); }
  nb::list statistics() { return statistics_of(Use(*this).get()); }
  nb::tuple tuned() {
    const Use use(*this);
    const char* why_not = "";
    const bool tuned = tw_group_tuned(use.get(), &why_not) != 0;
    return nb::make_tuple(tuned, why_not);
  }
  nb::str fabric() { return nb::str(tw_group_fabric(Use(*this).get())); }
  bool gone(int rank) { return tw_group_gone(Use(*this).get(), rank) != 0; }
  void abort(const char* why) {
    const Use use(*this);
    const NoGil nogil;
    tw_group_abort(use.get(), why);
  }

  void run(int kind, nb::handle in, nb::handle out, uint64_t count, int type, int op, double factor,
           int root, nb::handle timeout) {
    const Use use(*this);
    const Contents from(in, false), to(out, true);
    const tw_collective operation{kind, type, op, root, factor, count};
    const tw_wait wait = wait_for(timeout);
    check_without_gil([&](tw_status* status) {
      return tw_group_run(use.get(), &operation, from.data(), to.data(), &wait, status);
    });
  }

  static Runs runs_of(nb::handle list, size_t ranks, size_t room, const char* what) {
    Runs runs;
    runs.reserve(ranks);
    for (const nb::handle item : list) {
      const auto pair = nb::cast<nb::tuple>(item);
      runs.push_back({nb::cast<uint64_t>(pair[0]), nb::cast<uint64_t>(pair[1])});
      const tw_run& run = runs.back();
      if (run.offset > room || run.size > room - run.offset) {
        PyErr_Format(PyExc_ValueError, "a run of %s lies outside of it", what);
        throw nb::python_error();
      }
    }
    if (runs.size() == ranks) return runs;
    PyErr_Format(PyExc_ValueError, "%s needs %zu runs, not %zu", what, ranks, runs.size());
    throw nb::python_error();
  }

  void exchange(int kind, nb::handle in, nb::handle gives, nb::handle out, nb::handle takes,
                int type, int op, double factor, int root, nb::handle timeout) {
    const Use use(*this);
    const Contents from(in, false), to(out, true);
    const auto ranks = static_cast<size_t>(tw_group_size(use.get()));
    const Runs given = runs_of(gives, ranks, from.size(), "the input");
    Runs taken;
    if (kind == TW_REDUCE_SCATTER) {
      if (given[static_cast<size_t>(tw_group_rank(use.get()))].size != to.size()) {
        PyErr_SetString(PyExc_ValueError,
                        "the output has another size than the share of this rank");
        throw nb::python_error();
      }
    } else {
      taken = runs_of(takes, ranks, to.size(), "the output");
    }
    const tw_collective operation{kind, type, op, root, factor, 0};
    const tw_wait wait = wait_for(timeout);
    check_without_gil([&](tw_status* status) {
      return tw_group_exchange(use.get(), &operation, from.data(), given.data(), to.data(),
                               kind == TW_REDUCE_SCATTER ? nullptr : taken.data(), &wait, status);
    });
  }

  void send(int to, uint64_t tag, nb::handle data, nb::handle timeout) {
    const Use use(*this);
    const Contents from(data, false);
    const tw_wait wait = wait_for(timeout);
    check_without_gil([&](tw_status* status) {
      return tw_group_send(use.get(), to, tag, from.data(), from.size(), &wait, status);
    });
  }

  void receive(int source, uint64_t tag, nb::handle into, nb::handle timeout) {
    const Use use(*this);
    const Contents to(into, true);
    const tw_wait wait = wait_for(timeout);
    check_without_gil([&](tw_status* status) {
      return tw_group_receive(use.get(), source, tag, to.data(), to.size(), &wait, status);
    });
  }

  int receive_any(uint64_t tag, nb::handle into, nb::handle timeout) {
    const Use use(*this);
    const Contents to(into, true);
    const tw_wait wait = wait_for(timeout);
    int from = -1;
    check_without_gil([&](tw_status* status) {
      return tw_group_receive_any(use.get(), tag, to.data(), to.size(), &from, &wait, status);
    });
    return from;
  }

 private:
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (leaving_) return false;
    ++users_;
    return true;
  }

  std::mutex mutex_;  // guards what follows, and the end of `handle`
  size_t users_ = 0;
  bool leaving_ = false;
};

}  // namespace

void bind_groups(nb::module_& m) {
  m.def("algorithms", [] {
    nb::list names;
    for (size_t i = 0; const char* const name = tw_algorithm(i); ++i) names.append(name);
    return names;
  });
  m.def("group_statistics", [] { return statistics_of(nullptr); });
  nb::class_<Group>(m, "Group")
      .def(nb::init<nb::handle, int, int, const char*, bool, nb::handle>(), nb::arg("store"),
           nb::arg("rank"), nb::arg("size"), nb::arg("host"), nb::arg("deterministic"),
           nb::arg("timeout").none() = nb::none())
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def_prop_ro("fabric", &Group::fabric)
      .def_prop_ro("tuned", &Group::tuned)
      .def("statistics", &Group::statistics)
      .def("run", &Group::run, nb::arg("kind"), nb::arg("input").none(), nb::arg("output").none(),
           nb::arg("count"), nb::arg("type"), nb::arg("op"), nb::arg("factor"), nb::arg("root"),
           nb::arg("timeout").none())
      .def("exchange", &Group::exchange, nb::arg("kind"), nb::arg("input").none(), nb::arg("gives"),
           nb::arg("output").none(), nb::arg("takes").none(), nb::arg("type"), nb::arg("op"),
           nb::arg("factor"), nb::arg("root"), nb::arg("timeout").none())
      .def("send", &Group::send, nb::arg("rank"), nb::arg("tag"), nb::arg("data"),
           nb::arg("timeout").none())
      .def("receive", &Group::receive, nb::arg("rank"), nb::arg("tag"), nb::arg("into"),
           nb::arg("timeout").none())
      .def("receive_any", &Group::receive_any, nb::arg("tag"), nb::arg("into"),
           nb::arg("timeout").none())
      .def("gone", &Group::gone, nb::arg("rank"))
      .def("abort", &Group::abort, nb::arg("why"))
      .def("leave", &Group::leave);
}

}  // namespace binding
