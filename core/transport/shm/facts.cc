// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/facts.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fd.h"
#include "memory/memfd.h"

namespace tw::shm {
namespace {

constexpr const char* kMemory = "sealed memory (memfd)";

Fact memory(bool there) {
  if (there) return check(kMemory, "yes", Severity::kOk, "carries the arena of shm");
  return check(kMemory, "no", Severity::kFail,
               "shm cannot work: it needs memfd_create and F_SEAL_FUTURE_WRITE (Linux 5.1)",
               "uname -r  # run on Linux 5.1 or newer, and let seccomp permit memfd_create");
}

Fact death(bool there) {
  if (there)
    return check("pidfd", "yes", Severity::kOk,
                 "a killed peer on this host is noticed at once, in any container");
  return check("pidfd", "no", Severity::kWarn,
               "a killed peer is not noticed while children of it hold its connections open",
               "uname -r  # run on Linux 5.3 or newer, and let seccomp permit pidfd_open");
}

}  // namespace

KernelFeatures look() {
  const auto memfd = make_memfd("tensorwire-probe", page_size());
  const bool sealing = memfd.ok() && seal_memfd(memfd.value().get(), kOwnedSeals).ok();
  const Fd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  return {memfd.ok(), sealing, bool{self}};
}

Facts facts(const KernelFeatures& kernel) {
  Facts checks{memory(kernel.sealing), death(kernel.pidfd)};
  return {{"memfd", kernel.memfd},
          {"memfd_sealing", kernel.sealing},
          {"pidfd", kernel.pidfd},
          {"checks", Fact::Kind::kList, std::move(checks)}};
}

}  // namespace tw::shm
