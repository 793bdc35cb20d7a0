// SPDX-License-Identifier: Apache-2.0
// The ABI's constants, as symbols.
#include "abi.h"
#include "names.h"

extern "C" {

extern const int mpiabi_version_major, mpiabi_version_minor, mpiabi_version_patch;
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
extern const int mpiwrapper_version_major, mpiwrapper_version_minor, mpiwrapper_version_patch;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;

#define TW_MPI_SYMBOL(name, value)     \
  extern const intptr_t MPIABI_##name; \
  const intptr_t MPIABI_##name = value;
TW_MPI_CONSTANTS(TW_MPI_SYMBOL)

// Pasted at once: some of the names are macros of the C library.
#define TW_MPI_OTHER(name)             \
  extern const intptr_t MPIABI_##name; \
  const intptr_t MPIABI_##name = 0x10000 + __COUNTER__;
TW_MPI_OTHER_CONSTANTS(TW_MPI_OTHER)

// Fortran has none of them.
void mpiwrapper_export_fortran_constants_() {}

}  // extern "C"
