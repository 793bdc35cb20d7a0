// SPDX-License-Identifier: Apache-2.0
#include "engine/spin.h"

#include <sched.h>

namespace tw {

bool single_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
  return CPU_COUNT(&set) <= 1;
}

}  // namespace tw
