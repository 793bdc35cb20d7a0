// SPDX-License-Identifier: Apache-2.0
// Memory of another process of this user and host, read as it lies there: in one copy by the reader
// (process_vm_readv(2)), or through a mapping of the file that it lies in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "memory/memfd.h"

namespace tw::collective {

// A slab of an arena, as its process knows it.
struct SlabFile {
  int32_t descriptor = -1;
  uint64_t size = 0;

  bool operator==(const SlabFile&) const = default;
};

// What a process shows of itself, so that others find out whether they reach it: a value that no
// other process has, and where it lies.
struct MemoryMark {
  using Value = std::array<uint64_t, 2>;

  int32_t pid = 0;  // as the process itself knows it; 0: nobody is to read it
  uint64_t address = 0;
  Value value{};

  bool operator==(const MemoryMark&) const = default;
};

class OwnMark {
 public:
  // UNAVAILABLE: there are no random numbers.
  static Result<OwnMark> make();
  // Good as long as this object.
  const MemoryMark& mark() const { return mark_; }

 private:
  std::unique_ptr<const MemoryMark::Value> value_;
  MemoryMark mark_;
};

// Thread-safe.
class PeerMemory {
 public:
  // UNIMPLEMENTED: the kernel lets this process read nothing there (Yama, seccomp, user
  // namespaces), or the process has another number here (pid namespaces).
  static Result<PeerMemory> open(const MemoryMark& mark);

  // UNAVAILABLE: the process has died, and what was read may be another one's. INTERNAL: there is
  // no such memory.
  Status read(std::byte* to, uint64_t from, size_t size) const;
  // UNAVAILABLE: as above. INVALID_ARGUMENT: it is no slab of that size. INTERNAL: it cannot be
  // opened. RESOURCE_EXHAUSTED.
  Result<MemoryMap> map(const SlabFile& slab) const;

 private:
  Status alive() const;

  PeerMemory(int32_t pid, Fd process) : pid_(pid), process_(std::move(process)) {}

  int32_t pid_;
  Fd process_;  // readable once it has died: until then its number is its own
};

}  // namespace tw::collective
