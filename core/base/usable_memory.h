// SPDX-License-Identifier: Apache-2.0
// How much memory this process may use, and what share of it is the arena's unless somebody says.
#pragma once

#include <cstddef>
#include <string>

namespace tw {

struct MemoryFiles {
  std::string proc = "/proc";
  std::string groups = "/sys/fs/cgroup";
};

// The smallest limit of the control groups around this process, of version 1 or 2; 0: none.
size_t group_memory_limit(const MemoryFiles& files = {});

// The least of: the host's memory, what it commits to where it commits strictly, the limits of
// control groups, and this process's address space (RLIMIT_AS). 0: unknown.
size_t usable_memory(const MemoryFiles& files = {});

// A quarter, and a gigabyte at least, but no more than half; 64 gigabytes at most. A gigabyte of a
// memory that is not known.
size_t arena_share(size_t memory);

}  // namespace tw
