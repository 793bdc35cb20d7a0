// SPDX-License-Identifier: Apache-2.0
#include "collective/peer_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "meet/peer_process.h"

namespace tw::collective {

Result<OwnMark> OwnMark::make() {
  auto value = std::make_unique<MemoryMark::Value>();
  if (Status status = fill_random({reinterpret_cast<uint8_t*>(value->data()), sizeof *value});
      !status.ok())
    return status;
  OwnMark own;
  own.mark_ = {::getpid(), reinterpret_cast<uintptr_t>(value.get()), *value};
  own.value_ = std::move(value);
  return own;
}

Result<PeerMemory> PeerMemory::open(const MemoryMark& mark) {
  const auto out_of_reach = [] {
    return Status{Code::kUnimplemented, "the rank's memory cannot be read by this process"};
  };
  if (mark.pid <= 0) return out_of_reach();
  auto process = meet::watch_process(mark.pid);
  if (!process || !*process) return out_of_reach();
  PeerMemory memory(mark.pid, std::move(*process));
  MemoryMark::Value found{};
  const auto into = std::as_writable_bytes(std::span(found));
  if (!memory.read(into.data(), mark.address, into.size()).ok() || found != mark.value)
    return out_of_reach();
  return memory;
}

Status PeerMemory::read(std::byte* to, uint64_t from, size_t size) const {
  while (size != 0) {
    const iovec here{to, size};
    const iovec there{reinterpret_cast<void*>(static_cast<uintptr_t>(from)), size};
    const ssize_t read = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
    if (read <= 0) {
      const int error = read == 0 ? EFAULT : errno;
      if (error == EINTR) continue;
      return errno_status(error == ESRCH ? Code::kUnavailable : Code::kInternal,
                          text({"cannot read the memory of process ", pid_}), error);
    }
    to += read;
    from += static_cast<uint64_t>(read);
    size -= static_cast<size_t>(read);
  }
  return alive();
}

Result<MemoryMap> PeerMemory::map(const SlabFile& slab) const {
  const std::string path = text({"/proc/", pid_, "/fd/", slab.descriptor});
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file)
    return errno_status(Code::kInternal, text({"opening memory of process ", pid_}), errno);
  if (Status status = alive(); !status.ok()) return status;
  if (Status status = check_memfd(file.get(), slab.size, kOwnedSeals, O_RDONLY); !status.ok())
    return status;
  return MemoryMap::map(file.get(), slab.size, PROT_READ, MAP_SHARED | MAP_NORESERVE);
}

Status PeerMemory::alive() const {
  pollfd process{process_.get(), POLLIN, 0};
  if (::poll(&process, 1, 0) > 0)
    return {Code::kUnavailable, text({"process ", pid_, " has died"})};
  return {};
}

}  // namespace tw::collective
