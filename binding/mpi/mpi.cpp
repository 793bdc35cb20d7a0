// SPDX-License-Identifier: Apache-2.0
// The functions of MPI that are there: those that XLA's collectives on CPUs call, and a few that
// ask what this is. No exception leaves one.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "abi.h"
#include "communicator.h"
#include "error.h"
#include "process.h"

namespace tensorwire::mpi {

namespace {

// Of one that cannot allocate, or start a thread.
template <class Body>
int guarded(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return fail(k_ERR_OTHER, std::string("tensorwire: ") + error.what());
  }
}

template <class Body>
int with(Handle comm, Body&& body) {
  return guarded([&] {
    const auto found = communicator(comm);
    return found ? body(*found) : k_ERR_COMM;
  });
}

bool is_in_place(const void* data) { return reinterpret_cast<intptr_t>(data) == k_IN_PLACE; }

void put(const std::string& text, char* into, size_t room, int* length) {
  const size_t size = std::min(text.size(), room - 1);
  std::memcpy(into, text.data(), size);
  into[size] = 0;
  *length = static_cast<int>(size);
}

}  // namespace

}  // namespace tensorwire::mpi

extern "C" {

using namespace tensorwire::mpi;

int MPIABI_Init_thread(int*, char***, int, int* provided) {
  *provided = k_THREAD_MULTIPLE;
  return guarded(begin);
}

int MPIABI_Init(int*, char***) { return guarded(begin); }

int MPIABI_Initialized(int* flag) {
  *flag = begun();
  return k_SUCCESS;
}

int MPIABI_Finalize() {
  return guarded([] {
    end();
    return k_SUCCESS;
  });
}

int MPIABI_Finalized(int* flag) {
  *flag = ended();
  return k_SUCCESS;
}

// All threads may call all functions.
int MPIABI_Query_thread(int* provided) {
  *provided = k_THREAD_MULTIPLE;
  return k_SUCCESS;
}

// XLA refuses to work in a thread of which this is not true, and asks for no other reason.
int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return k_SUCCESS;
}

int MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return k_SUCCESS;
}

int MPIABI_Get_library_version(char* into, int* length) {
  put("tensorwire", into, sizeof "tensorwire", length);
  return k_SUCCESS;
}

int MPIABI_Error_string(int code, char* into, int* length) {
  const std::string& sentence = last_sentence();
  put(code == k_SUCCESS || sentence.empty() ? "tensorwire: no error" : sentence, into,
      kMaxErrorString, length);
  return k_SUCCESS;
}

// Whether memory of accelerators may be given: of none.
int MPIXABI_Query_cuda_support() { return 0; }
int MPIXABI_Query_hip_support() { return 0; }
int MPIXABI_Query_ze_support() { return 0; }

int MPIABI_Comm_rank(Handle comm, int* rank) {
  return with(comm, [&](Communicator& found) {
    *rank = found.rank();
    return k_SUCCESS;
  });
}

int MPIABI_Comm_size(Handle comm, int* size) {
  return with(comm, [&](Communicator& found) {
    *size = found.size();
    return k_SUCCESS;
  });
}

int MPIABI_Comm_split(Handle comm, int color, int key, Handle* out) {
  *out = k_COMM_NULL;
  return with(comm, [&](Communicator& found) {
    auto made = found.split(color, key);
    if (!made) return k_SUCCESS;
    const std::string broken = made->why_broken();
    *out = add(std::move(made));
    return broken.empty() ? k_SUCCESS : fail(k_ERR_OTHER, broken);
  });
}

int MPIABI_Comm_free(Handle* comm) {
  return guarded([&] {
    remove(*comm);
    *comm = k_COMM_NULL;
    return k_SUCCESS;
  });
}

int MPIABI_Barrier(Handle comm) {
  return with(comm, [](Communicator& found) { return found.barrier(); });
}

int MPIABI_Allreduce(const void* in, void* out, int count, Handle type, Handle op, Handle comm) {
  return with(comm, [&](Communicator& found) {
    return found.all_reduce(is_in_place(in) ? out : in, out, count, type, op);
  });
}

// All ranks give and get the same type, which XLA does.
int MPIABI_Allgather(const void* in, int, Handle, void* out, int count, Handle type, Handle comm) {
  return with(comm, [&](Communicator& found) {
    if (is_in_place(in))
      return fail(k_ERR_ARG, "tensorwire: MPI_Allgather needs an array apart from the result");
    return found.all_gather(in, out, count, type);
  });
}

int MPIABI_Reduce_scatter(const void* in, void* out, const int* counts, Handle type, Handle op,
                          Handle comm) {
  return with(comm, [&](Communicator& found) {
    return found.reduce_scatter(is_in_place(in) ? out : in, out, counts, type, op);
  });
}

int MPIABI_Isend(const void* data, int count, Handle type, int to, int tag, Handle comm,
                 Handle* request) {
  *request = k_REQUEST_NULL;
  return guarded([&] {
    const auto found = communicator(comm);
    if (!found) return k_ERR_COMM;
    auto message = found->send(data, count, type, to, tag);
    if (!message) return k_ERR_ARG;
    *request = add(Request{found, std::move(message), nullptr});
    return k_SUCCESS;
  });
}

// Received by whoever waits for it: those of one rank and tag are to be waited for in order.
int MPIABI_Irecv(void* into, int count, Handle type, int from, int tag, Handle comm,
                 Handle* request) {
  *request = k_REQUEST_NULL;
  return guarded([&] {
    const auto found = communicator(comm);
    if (!found) return k_ERR_COMM;
    *request =
        add(Request{found, nullptr, [=] { return found->receive(into, count, type, from, tag); }});
    return k_SUCCESS;
  });
}

int MPIABI_Wait(Handle* request, void*) {
  return guarded([&] {
    const Handle given = std::exchange(*request, k_REQUEST_NULL);
    return given == k_REQUEST_NULL ? k_SUCCESS : wait(given);
  });
}

int MPIABI_Sendrecv(const void* data, int count, Handle type, int to, int tag, void* into, int room,
                    Handle as, int from, int its_tag, Handle comm, void*) {
  return with(comm, [&](Communicator& found) {
    const auto message = found.send(data, count, type, to, tag);
    if (!message) return k_ERR_ARG;
    const int received = found.receive(into, room, as, from, its_tag);
    return received == k_SUCCESS ? found.sent(*message) : received;
  });
}

}  // extern "C"
