// SPDX-License-Identifier: Apache-2.0
// A barrier that tells which ranks have not come.
#pragma once

#include <cstdint>

#include "core.h"

namespace tensorwire {

// Who calls it, and how: the same on all ranks, but for `rank` and `names_all`.
struct MonitoredBarrier {
  int rank, size;
  uint64_t number;  // of those of the group
  bool names_all;   // false: the first rank that has not come
};

// Every rank tells rank 0 that it has come. Rank 0 answers each, waits for the others for as long
// as `wait` says, and then tells all that have come who has not. Only messages are sent: the group
// goes on when it fails. It returns within twice the time, and one second more.
int run(const MonitoredBarrier& barrier, tw_group* group, const tw_wait& wait, tw_status* status);

}  // namespace tensorwire
