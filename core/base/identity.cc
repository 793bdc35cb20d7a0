// SPDX-License-Identifier: Apache-2.0
#include "base/identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fork.h"

namespace tw {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The kernel writes it as a UUID. Zero when it cannot be read, which equals no other host's.
std::array<uint8_t, 16> read_boot_id() {
  std::array<uint8_t, 16> id{};
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 36> uuid;
  if (!file || ::read(file.get(), uuid.data(), uuid.size()) != ssize_t{uuid.size()}) return {};
  size_t digits = 0;
  for (const char c : uuid) {
    if (c == '-') continue;
    const int digit = hex_digit(c);
    if (digit < 0 || digits == 2 * id.size()) return {};
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | digit);
    ++digits;
  }
  return digits == 2 * id.size() ? id : std::array<uint8_t, 16>{};
}

uint64_t read_pid_namespace() {
  struct stat facts{};
  return ::stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

// Neither changes before the process forks. What could not be read, for want of descriptors, is
// read anew the next time.
struct HostIdentity {
  std::array<uint8_t, 16> boot_id{};
  uint64_t pid_namespace = 0;
  Birthplace birthplace;

  bool known() const {
    return birthplace.here() && pid_namespace != 0 && boot_id != std::array<uint8_t, 16>{};
  }
};

const HostIdentity& surroundings() {
  thread_local HostIdentity found;  // of the thread: a lock could be held where another one forks
  if (!found.known()) found = {read_boot_id(), read_pid_namespace(), {}};
  return found;
}

}  // namespace

Identity read_identity() {
  const HostIdentity& here = surroundings();
  return {here.boot_id, here.pid_namespace, static_cast<uint32_t>(::getpid()), ::geteuid()};
}

}  // namespace tw
