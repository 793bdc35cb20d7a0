// SPDX-License-Identifier: Apache-2.0
#include "base/usable_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

namespace tw {
namespace {

constexpr size_t kMi = size_t{1} << 20;
constexpr size_t kGi = size_t{1} << 30;

// The number that a line begins with; 0 where there is none, as in "max".
size_t number_at(std::string_view line) {
  const size_t first = line.find_first_of("0123456789");
  size_t number = 0;
  if (first != std::string_view::npos)
    std::from_chars(line.data() + first, line.data() + line.size(), number);
  return number;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// 0 stands for no limit.
size_t smaller(size_t a, size_t b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

// Of a group and those around it, up to the root that this process sees.
size_t limit_of(const std::string& root, std::string group, const char* file) {
  size_t limit = 0;
  while (!group.empty() && group.back() == '/') group.pop_back();
  for (;;) {
    limit = smaller(limit, number_at(first_line(root + group + "/" + file)));
    if (group.empty()) return limit;
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

size_t group_memory_limit(const MemoryFiles& files) {
  size_t limit = 0;
  std::ifstream groups(files.proc + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,")
      limit = smaller(limit, limit_of(files.groups, group, "memory.max"));
    else if (controllers.find(",memory,") != std::string::npos)
      limit = smaller(limit, limit_of(files.groups + "/memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

size_t usable_memory(const MemoryFiles& files) {
  constexpr size_t kKi = 1024;
  const bool strict = first_line(files.proc + "/sys/vm/overcommit_memory") == "2";
  size_t memory = group_memory_limit(files);
  std::ifstream facts(files.proc + "/meminfo");
  for (std::string line; std::getline(facts, line);)
    if (line.starts_with("MemTotal:") || (strict && line.starts_with("CommitLimit:")))
      memory = smaller(memory, number_at(line) * kKi);
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    memory = smaller(memory, space.rlim_cur);
  return memory;
}

size_t arena_share(size_t memory) {
  if (memory == 0) return kGi;
  const size_t share = std::min({std::max(memory / 4, kGi), memory / 2, 64 * kGi});
  return std::max(share / kMi, size_t{1}) * kMi;
}

}  // namespace tw
