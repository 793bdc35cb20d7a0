// SPDX-License-Identifier: Apache-2.0
// This process as a rank, from MPI_Init to MPI_Finalize, and the handles that it has given out.
#pragma once

#include <functional>
#include <memory>

#include "abi.h"
#include "communicator.h"

namespace tensorwire::mpi {

// Has Python join the group of all ranks, unless that has been done. An error with its sentence.
int begin();
// Leaves all groups. What is under way in other threads ends with an error.
void end();
bool begun();
bool ended();

// Null, with an error, for a handle that is none.
std::shared_ptr<Communicator> communicator(Handle handle);
Handle add(std::shared_ptr<Communicator> communicator);
void remove(Handle handle);

// A message that has been begun.
struct Request {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Message> message;  // one that is sent; null: one that is received
  std::function<int()> receive;
};
Handle add(Request request);
// Ends it, and forgets the handle.
int wait(Handle handle);

}  // namespace tensorwire::mpi
