// SPDX-License-Identifier: Apache-2.0
// Functions of MPI that are not there: they say so, and fail.
#include "error.h"
#include "names.h"

extern "C" {

// Whatever they are given, they look at none of it.
#define TW_MPI_FUNCTION(name) \
  int MPIABI_##name() { return tensorwire::mpi::missing("MPI_" #name); }
TW_MPI_MISSING(TW_MPI_FUNCTION)

}  // extern "C"
