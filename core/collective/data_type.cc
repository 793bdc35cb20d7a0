// SPDX-License-Identifier: Apache-2.0
#include "collective/data_type.h"

namespace tw {

const char* name_of(DataType type) {
  static constexpr const char* kNames[] = {
      "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16",
      "int32",   "int64",   "uint8",   "uint16",   "uint32",        "uint64",      "bool",
  };
  static_assert(sizeof kNames / sizeof *kNames == kDataTypes);
  return kNames[static_cast<size_t>(type)];
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum",     "average", "product", "min",   "max",
                                           "bit_and", "bit_or",  "bit_xor", "adasum"};
  static_assert(sizeof kNames / sizeof *kNames == kReduceOps);
  return kNames[static_cast<size_t>(op)];
}

}  // namespace tw
