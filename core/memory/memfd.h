// SPDX-License-Identifier: Apache-2.0
// Anonymous memory files that two processes share: making, sealing, checking and mapping them.
#pragma once

#include <cstddef>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace tw {

// The unit of mappings on this host, bytes.
size_t page_size();

// Of x86-64 and, with pages of 4 KiB, aarch64.
inline constexpr size_t kHugePage = 2 << 20;

// Rounds up to a multiple of `unit`, a power of two. The caller has bounded `n`.
constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) & ~(unit - 1); }

// Seals of memory that both ends write (rings): its size is settled for good.
extern const int kSharedSeals;
// Seals of memory that only its owner, who has mapped it before, may ever write (slabs).
extern const int kOwnedSeals;

// A fresh memory file of `size` bytes, readable, writable and closed on exec.
// RESOURCE_EXHAUSTED (descriptors, memory), FAILED_PRECONDITION (no memfd on this host).
Result<Fd> make_memfd(const char* name, size_t size);

Status seal_memfd(int fd, int seals);

// Another descriptor of the same file through which nobody can write or map for writing.
Result<Fd> reopen_read_only(int fd);

// What a descriptor from a peer must be before it is mapped: a memory file of ordinary pages, of
// exactly `size` bytes, bearing at least `seals`, opened with `access` (O_RDONLY or O_RDWR).
// INVALID_ARGUMENT says which of these does not hold.
Status check_memfd(int fd, size_t size, int seals, int access);

// A mapping of this process, undone when the object goes.
class MemoryMap {
 public:
  // As mmap(2); fd -1 maps anonymous memory. RESOURCE_EXHAUSTED when the kernel refuses.
  static Result<MemoryMap> map(int fd, size_t size, int protection, int flags, size_t offset = 0);

  // The same for memory whose pages must come one by one as they are used, even in a process that
  // has asked mlockall(2) to fill and lock every new mapping. Where the file has huge pages, they
  // can be mapped whole.
  static Result<MemoryMap> map_lazily(int fd, size_t size, int flags, size_t offset = 0);

  MemoryMap() = default;
  MemoryMap(MemoryMap&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MemoryMap& operator=(MemoryMap&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MemoryMap();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // To `size` bytes, of which the first are what they were; they may move. RESOURCE_EXHAUSTED:
  // nothing has changed.
  Status grow(size_t size);
  // To the whole of `room`, as grow(), and to its place.
  Status move_to(MemoryMap room);
  // Cuts off the first `size` bytes, whole pages and no more than there are: a mapping of their
  // own.
  MemoryMap cut(size_t size);

 private:
  MemoryMap(std::byte* data, size_t size) : data_(data), size_(size) {}

  static Result<MemoryMap> map_congruent(int fd, size_t size, int protection, int flags,
                                         size_t offset);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tw
