// SPDX-License-Identifier: Apache-2.0
#include "process/host_facts.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "base/usable_memory.h"
#include "engine/spin.h"
#include "memory/memfd.h"
#include "memory/private_pages.h"
#include "process/local_folder.h"

namespace tw {
namespace {

std::string read_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string limit(int resource) {
  rlimit limits{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limits) != 0) return "0";
  return limits.rlim_cur == RLIM_INFINITY ? "-1" : std::to_string(limits.rlim_cur);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> host_facts(
    const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds) {
  utsname name{};
  uname(&name);
  std::vector<std::pair<std::string, std::string>> facts{
      {"kernel", name.release},
      {"machine", name.machine},
      {"cpus", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
      {"single_cpu", single_cpu() ? "1" : "0"},
      {"pagemap_scan", page_scan_ioctl_works() ? "1" : "0"},
      {"runtime_folder", LocalFolder::base(settings.runtime_dir)},
      {"boot_id", read_line("/proc/sys/kernel/random/boot_id")},
      {"congestion_default", read_line("/proc/sys/net/ipv4/tcp_congestion_control")},
      {"congestion_available", read_line("/proc/sys/net/ipv4/tcp_available_congestion_control")},
      {"memlock_bytes", limit(RLIMIT_MEMLOCK)},
      {"nofile", limit(RLIMIT_NOFILE)},
      {"memory_limit", std::to_string(group_memory_limit())},
      {"page_size", std::to_string(page_size())},
  };
  for (const auto& kind : kinds)
    for (auto& fact : kind->facts()) facts.push_back(std::move(fact));
  return facts;
}

}  // namespace tw
