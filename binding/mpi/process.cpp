// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "error.h"

// Python's, of whatever program has loaded this library; none in a program that has no Python.
extern "C" {
__attribute__((weak)) int PyGILState_Ensure();
__attribute__((weak)) void PyGILState_Release(int);
__attribute__((weak)) int PyRun_SimpleString(const char*);
}

namespace tensorwire::mpi {

namespace {

constexpr Handle kFirstHandle = 0x1000;

struct State {
  std::mutex mutex;  // guards what follows
  std::map<Handle, std::shared_ptr<Communicator>> communicators;
  std::map<Handle, Request> requests;
  Handle next = kFirstHandle;
  bool begun = false, ended = false;
};

// It outlives what ends with the process: XLA gives handles back as late as that.
State& state() {
  static auto& state = *new State;
  return state;
}

Handle next_handle(State& all) { return all.next++; }

// XLA does not look at what MPI_Init says: its operations fail with the reason, because it does
// look at those. `size`: 2 where it is not known, so that operations are not left out as those of
// one.
void refuse(int rank, int size, const std::string& why) {
  const std::lock_guard lock(state().mutex);
  state().communicators[k_COMM_WORLD] = Communicator::broken(rank, size, why);
}

}  // namespace

int begin() {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    if (all.ended) return fail(k_ERR_OTHER, "tensorwire: MPI has been finalized");
    if (all.begun) return k_SUCCESS;
  }
  if (!PyGILState_Ensure || !PyRun_SimpleString)
    return fail(k_ERR_OTHER, "tensorwire: this library needs a Python program around it");
  refuse(0, 2, "tensorwire: Python cannot import tensorwire.jax (see standard error)");
  const int gil = PyGILState_Ensure();
  (void)PyRun_SimpleString("from tensorwire.jax import rendezvous as _r; _r.meet(); del _r");
  PyGILState_Release(gil);
  if (begun()) return k_SUCCESS;
  const auto world = communicator(k_COMM_WORLD);
  std::fprintf(stderr, "%s\n", world->why_broken().c_str());
  return fail(k_ERR_OTHER, world->why_broken());
}

void end() {
  State& all = state();
  std::vector<std::shared_ptr<Communicator>> left;
  {
    const std::lock_guard lock(all.mutex);
    all.ended = true;
    for (auto& [handle, each] : all.communicators) left.push_back(std::move(each));
    all.communicators.clear();
    all.requests.clear();
  }
  // One that a thread uses is released by that thread, once its operation has ended.
  for (const auto& each : left)
    if (each.use_count() > 1) each->abort("this rank has ended");
}

bool begun() {
  const std::lock_guard lock(state().mutex);
  return state().begun;
}

bool ended() {
  const std::lock_guard lock(state().mutex);
  return state().ended;
}

std::shared_ptr<Communicator> communicator(Handle handle) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.communicators.find(handle);
  if (found != all.communicators.end()) return found->second;
  fail(k_ERR_COMM,
       all.ended ? "tensorwire: MPI has been finalized" : "tensorwire: this is no communicator");
  return nullptr;
}

Handle add(std::shared_ptr<Communicator> communicator) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Handle handle = next_handle(all);
  all.communicators.emplace(handle, std::move(communicator));
  return handle;
}

void remove(Handle handle) {
  std::shared_ptr<Communicator> last;  // ends without the lock
  const std::lock_guard lock(state().mutex);
  const auto found = state().communicators.find(handle);
  if (found == state().communicators.end()) return;
  last = std::move(found->second);
  state().communicators.erase(found);
}

Handle add(Request request) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const Handle handle = next_handle(all);
  all.requests.emplace(handle, std::move(request));
  return handle;
}

int wait(Handle handle) {
  State& all = state();
  Request request;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.requests.find(handle);
    if (found == all.requests.end()) return fail(k_ERR_REQUEST, "tensorwire: this is no request");
    request = std::move(found->second);
    all.requests.erase(found);
  }
  return request.message ? request.communicator->sent(*request.message) : request.receive();
}

}  // namespace tensorwire::mpi

// What Python calls: src/tensorwire/jax/library.py.
extern "C" {

// Joins the group of all ranks, which is MPI_COMM_WORLD from then on. 0, or -1 with a sentence.
int tensorwire_mpi_join(uintptr_t table, const tw_store* store, const char* name, int rank,
                        int size, int64_t timeout_ns, int (*interrupted)(void*), char* sentence,
                        size_t room) {
  using namespace tensorwire::mpi;
  const auto* const core = reinterpret_cast<const tw_table*>(table);
  std::string why;
  if (core->version != TW_TABLE_VERSION || core->size < sizeof(tw_table)) {
    why = "tensorwire: this library and the package are of different versions: reinstall";
  } else {
    auto world = Communicator::join({core, *store, timeout_ns}, name, rank, size, interrupted);
    why = world->why_broken();
    if (why.empty()) {
      State& all = state();
      const std::lock_guard lock(all.mutex);
      all.communicators[k_COMM_WORLD] = std::move(world);
      all.begun = true;
      return 0;
    }
  }
  why.copy(sentence, room - 1);
  sentence[std::min(room - 1, why.size())] = 0;
  return -1;
}

// Has all operations fail: the ranks cannot meet.
void tensorwire_mpi_refuse(int rank, int size, const char* sentence) {
  tensorwire::mpi::refuse(rank, size, sentence);
}

// Visits each communicator, that of all ranks first, and then its operations.
typedef void (*tensorwire_mpi_visit)(void* context, int size, const char* fabric);
void tensorwire_mpi_statistics(tensorwire_mpi_visit visit, tw_visit_operations operations,
                               void* context) {
  using namespace tensorwire::mpi;
  std::vector<std::shared_ptr<Communicator>> found;
  {
    const std::lock_guard lock(state().mutex);
    for (const auto& [handle, each] : state().communicators) found.push_back(each);
  }
  for (const auto& each : found) {
    visit(context, each->size(), each->fabric());
    each->statistics(operations, context);
  }
}

}  // extern "C"
