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
#include "process/all_settings.h"
#include "process/local_folder.h"
#include "process/runtime.h"

namespace tw {
namespace {

std::string read_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// -1: there is none.
int64_t limit(int resource) {
  rlimit limits{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limits) != 0) return 0;
  return limits.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limits.rlim_cur);
}

}  // namespace

Facts host_facts(const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds) {
  utsname name{};
  uname(&name);
  Facts facts{
      {"kernel", name.release},
      {"machine", name.machine},
      {"cpus", sysconf(_SC_NPROCESSORS_ONLN)},
      {"single_cpu", single_cpu()},
      {"pagemap_scan", page_scan_ioctl_works()},
      {"runtime_folder", LocalFolder::base(settings.runtime_dir)},
      {"boot_id", read_line("/proc/sys/kernel/random/boot_id")},
      {"congestion_default", read_line("/proc/sys/net/ipv4/tcp_congestion_control")},
      {"congestion_available", read_line("/proc/sys/net/ipv4/tcp_available_congestion_control")},
      {"memlock_bytes", limit(RLIMIT_MEMLOCK)},
      {"nofile", limit(RLIMIT_NOFILE)},
      {"memory_limit", static_cast<int64_t>(group_memory_limit())},
      {"page_size", static_cast<int64_t>(page_size())},
  };
  Facts transports;
  for (const auto& kind : kinds)
    transports.emplace_back(std::string(kind->name()), Fact::Kind::kRecord, kind->facts());
  facts.emplace_back("transports", Fact::Kind::kRecord, std::move(transports));
  return facts;
}

Facts host_facts() {
  const auto runtime = Runtime::get();
  return runtime ? host_facts((*runtime)->settings(), (*runtime)->kinds())
                 : host_facts({}, usual_kinds());
}

}  // namespace tw
