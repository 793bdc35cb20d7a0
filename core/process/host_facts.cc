// SPDX-License-Identifier: Apache-2.0
#include "process/host_facts.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "base/fd.h"
#include "base/usable_memory.h"
#include "engine/spin.h"
#include "memory/memfd.h"
#include "memory/private_pages.h"
#include "process/local_folder.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/facts.h"
#include "transport/verbs/library.h"

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

std::vector<std::pair<std::string, std::string>> host_facts(const Settings& settings) {
  utsname name{};
  uname(&name);
  const auto memfd = make_memfd("tensorwire-probe", page_size());
  const bool sealing = memfd.ok() && seal_memfd(memfd.value().get(), kOwnedSeals).ok();
  const Fd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  std::vector<std::pair<std::string, std::string>> facts{
      {"kernel", name.release},
      {"machine", name.machine},
      {"cpus", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
      {"single_cpu", single_cpu() ? "1" : "0"},
      {"memfd", memfd.ok() ? "1" : "0"},
      {"memfd_sealing", sealing ? "1" : "0"},
      {"pidfd", self ? "1" : "0"},
      {"pagemap_scan", page_scan_ioctl_works() ? "1" : "0"},
      {"runtime_folder", LocalFolder::base(settings.runtime_dir)},
      {"boot_id", read_line("/proc/sys/kernel/random/boot_id")},
      {"congestion_default", read_line("/proc/sys/net/ipv4/tcp_congestion_control")},
      {"congestion_available", read_line("/proc/sys/net/ipv4/tcp_available_congestion_control")},
      {"congestion_same_host", same_host_congestion(settings)},
      {"memlock_bytes", limit(RLIMIT_MEMLOCK)},
      {"nofile", limit(RLIMIT_NOFILE)},
      {"memory_limit", std::to_string(group_memory_limit())},
      {"page_size", std::to_string(page_size())},
  };
  if (const auto library = verbs::Library::get(); !library) {
    facts.emplace_back("verbs", library.status().details());
  } else if constexpr (verbs::kBuilt) {
    for (auto& fact : verbs::facts(**library, settings)) facts.push_back(std::move(fact));
  }
  return facts;
}

}  // namespace tw
