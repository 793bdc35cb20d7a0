// SPDX-License-Identifier: Apache-2.0
// MPItrampoline's ABI 2.10: a library that has its symbols is an MPI for whoever was built on
// MPItrampoline, which stock jaxlib is. Handles are as wide as a pointer, and so is each constant.
#pragma once

#include <cstdint>

namespace tensorwire::mpi {

using Handle = uintptr_t;

// Constants that mean something here, with values of ours.
#define TW_MPI_CONSTANTS(NAME)       \
  NAME(SUCCESS, 0)                   \
  NAME(UNDEFINED, -32766)            \
  NAME(PROC_NULL, -2)                \
  NAME(IN_PLACE, -3)                 \
  NAME(STATUS_IGNORE, 0)             \
  NAME(STATUSES_IGNORE, 0)           \
  NAME(THREAD_SINGLE, 0)             \
  NAME(THREAD_FUNNELED, 1)           \
  NAME(THREAD_SERIALIZED, 2)         \
  NAME(THREAD_MULTIPLE, 3)           \
  NAME(COMM_NULL, 0)                 \
  NAME(COMM_WORLD, 1)                \
  NAME(REQUEST_NULL, 0)              \
  NAME(ERR_ARG, 1)                   \
  NAME(ERR_COMM, 2)                  \
  NAME(ERR_COUNT, 3)                 \
  NAME(ERR_OP, 4)                    \
  NAME(ERR_OTHER, 5)                 \
  NAME(ERR_REQUEST, 6)               \
  NAME(ERR_TYPE, 7)                  \
  NAME(ERR_UNSUPPORTED_OPERATION, 8) \
  NAME(BYTE, 0x100)                  \
  NAME(INT8_T, 0x101)                \
  NAME(INT16_T, 0x102)               \
  NAME(INT32_T, 0x103)               \
  NAME(INT64_T, 0x104)               \
  NAME(UINT8_T, 0x105)               \
  NAME(UINT16_T, 0x106)              \
  NAME(UINT32_T, 0x107)              \
  NAME(UINT64_T, 0x108)              \
  NAME(FLOAT, 0x109)                 \
  NAME(DOUBLE, 0x10a)                \
  NAME(C_COMPLEX, 0x10b)             \
  NAME(C_DOUBLE_COMPLEX, 0x10c)      \
  NAME(SUM, 0x200)                   \
  NAME(PROD, 0x201)                  \
  NAME(MIN, 0x202)                   \
  NAME(MAX, 0x203)                   \
  NAME(BAND, 0x204)                  \
  NAME(BOR, 0x205)                   \
  NAME(BXOR, 0x206)

// The same for the code here.
#define TW_MPI_VALUE(name, value) inline constexpr int k_##name = value;
TW_MPI_CONSTANTS(TW_MPI_VALUE)
#undef TW_MPI_VALUE

// MPI's longest text of an error.
inline constexpr int kMaxErrorString = 1024;

}  // namespace tensorwire::mpi
