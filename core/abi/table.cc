// SPDX-License-Identifier: Apache-2.0
// The C ABI: the function table for plugins.
#include "tensorwire.h"

const tw_table* tw_get_table() {
#define TW_TABLE_ENTRY(name, function) function,
  static const tw_table table{TW_TABLE_VERSION, sizeof(tw_table), TW_TABLE(TW_TABLE_ENTRY)};
#undef TW_TABLE_ENTRY
  return &table;
}
