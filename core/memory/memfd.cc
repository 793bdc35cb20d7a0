// SPDX-License-Identifier: Apache-2.0
#include "memory/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace tw {
namespace {

// From linux/memfd.h, linux/fcntl.h and linux/magic.h of newer kernels than the headers may be.
constexpr unsigned kNoExecSeal = 0x0008;
constexpr int kSealFutureWrite = 0x0010;
constexpr long kTmpfsMagic = 0x01021994;

Code code_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN:
      return Code::kResourceExhausted;
    default:
      return Code::kFailedPrecondition;
  }
}

Status refused(std::string why) {
  return {Code::kInvalidArgument, "the descriptor of shared memory " + std::move(why)};
}

}  // namespace

const int kSharedSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
const int kOwnedSeals = kSharedSeals | kSealFutureWrite;

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

Result<Fd> make_memfd(const char* name, size_t size) {
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd fd(memfd_create(name, flags | kNoExecSeal));
  if (!fd && errno == EINVAL) fd.reset(memfd_create(name, flags));
  if (!fd) return errno_status(code_of(errno), "memfd_create", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    return errno_status(code_of(errno), "sizing shared memory", errno);
  return fd;
}

Status seal_memfd(int fd, int seals) {
  if (fcntl(fd, F_ADD_SEALS, seals) == 0) return {};
  return errno_status(Code::kFailedPrecondition, "sealing shared memory", errno);
}

Result<Fd> reopen_read_only(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  Fd copy(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!copy) return errno_status(code_of(errno), "opening " + path + " read-only", errno);
  return copy;
}

Status check_memfd(int fd, size_t size, int seals, int access) {
  struct stat status;
  struct statfs system;
  if (fstat(fd, &status) != 0 || fstatfs(fd, &system) != 0)
    return errno_status(Code::kInvalidArgument, "the descriptor of shared memory", errno);
  if (!S_ISREG(status.st_mode) || system.f_type != kTmpfsMagic)
    return refused("is not a memory file of ordinary pages");
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != access)
    return refused(access == O_RDONLY ? "is not read-only" : "is not readable and writable");
  // The seals come before the size: only a sealed size stays what it is found to be.
  const int present = fcntl(fd, F_GET_SEALS);
  if (present < 0 || (present & seals) != seals) {
    return refused("lacks seals: " + std::to_string(seals) + " wanted, " +
                   std::to_string(present < 0 ? 0 : present) + " present");
  }
  if (fstat(fd, &status) != 0 || status.st_size < 0 || static_cast<size_t>(status.st_size) != size)
    return refused("has " + std::to_string(status.st_size) + " bytes, " + std::to_string(size) +
                   " were announced");
  return {};
}

Result<MemoryMap> MemoryMap::map(int fd, size_t size, int protection, int flags, size_t offset) {
  if (fd < 0) flags |= MAP_ANONYMOUS;
  void* const data = mmap(nullptr, size, protection, flags, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    return errno_status(Code::kResourceExhausted, "mapping " + std::to_string(size) + " bytes",
                        errno);
  }
  return MemoryMap(static_cast<std::byte*>(data), size);
}

// At an address that lies in a huge page where `offset` does in the file's.
Result<MemoryMap> MemoryMap::map_congruent(int fd, size_t size, int protection, int flags,
                                           size_t offset) {
  if (size < kHugePage) return map(fd, size, protection, flags, offset);
  auto room = map(-1, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE);
  if (!room) return room;
  const auto begin = reinterpret_cast<uintptr_t>(room->data());
  const size_t before = (offset - begin) % kHugePage;
  if (before != 0) room->cut(before);
  // If the kernel refuses, it may have unmapped the place, which is anybody's then: it is let go
  // of.
  MemoryMap map = room->cut(size);
  std::byte* const place = std::exchange(map.data_, nullptr);
  if (mmap(place, size, protection, flags | MAP_FIXED, fd, static_cast<off_t>(offset)) ==
      MAP_FAILED)
    return errno_status(Code::kResourceExhausted, "mapping " + std::to_string(size) + " bytes",
                        errno);
  map.data_ = place;
  return map;
}

Result<MemoryMap> MemoryMap::map_lazily(int fd, size_t size, int flags, size_t offset) {
  // A locked private mapping would copy every page at once and never show the file again. Nothing
  // is filled in as long as nothing may be accessed.
  auto map = map_congruent(fd, size, PROT_NONE, flags | MAP_NORESERVE, offset);
  if (!map) return map;
  munlock(map->data(), size);
  if (mprotect(map->data(), size, PROT_READ | PROT_WRITE) != 0)
    return errno_status(Code::kResourceExhausted, "mapping " + std::to_string(size) + " bytes",
                        errno);
  return map;
}

Status MemoryMap::grow(size_t size) {
  void* const data = mremap(data_, size_, size, MREMAP_MAYMOVE);
  if (data == MAP_FAILED) {
    return errno_status(Code::kResourceExhausted, "mapping " + std::to_string(size) + " bytes",
                        errno);
  }
  data_ = static_cast<std::byte*>(data);
  size_ = size;
  return {};
}

Status MemoryMap::move_to(MemoryMap room) {
  // Also a move that fails may have unmapped the place, which is anybody's then: it is let go of.
  std::byte* const place = std::exchange(room.data_, nullptr);
  if (mremap(data_, size_, room.size_, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) {
    return errno_status(Code::kResourceExhausted,
                        "mapping " + std::to_string(room.size_) + " bytes", errno);
  }
  data_ = place;
  size_ = room.size_;
  return {};
}

MemoryMap MemoryMap::cut(size_t size) {
  MemoryMap front(data_, size);
  size_ -= size;
  data_ = size_ == 0 ? nullptr : data_ + size;
  return front;
}

MemoryMap::~MemoryMap() {
  if (data_) munmap(data_, size_);
}

}  // namespace tw
