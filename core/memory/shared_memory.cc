// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <string>

#include "memory/huge_pages.h"

namespace tw {

SharedWords& SharedMemory::words() const {
  return *reinterpret_cast<SharedWords*>(map_.data() + map_.size() - page_size());
}

void SharedMemory::dispose() noexcept {
  if (!birthplace_.here()) return;  // the parent's, which has it mapped, too
  home_.forget(*this);
  delete this;
}

Result<Ref<SharedMemory>> SharedMemories::make(size_t size) {
  if (size == 0) return Status{Code::kInvalidArgument, "shared memory needs at least 1 byte"};
  const auto too_much = [&](size_t taken) {
    return Status{Code::kResourceExhausted,
                  std::to_string(size) + " bytes of shared memory on top of " +
                      std::to_string(taken) + " are more than the " + std::to_string(limit_) +
                      " of TENSORWIRE_SHARED_MEMORY_BYTES"};
  };
  if (size > limit_) return too_much(0);
  const size_t file_size = round_up(size, page_size()) + page_size();
  {
    const MutexLock lock(mutex_);
    if (bytes_ > limit_ - size) return too_much(bytes_);
    bytes_ += size;
  }
  // Given back unless the memory is there, which does that itself.
  struct Reserved {
    ~Reserved() {
      const MutexLock lock(of.mutex_);
      of.bytes_ -= bytes;
    }
    SharedMemories& of;
    size_t bytes;
  } reserved{*this, size};
  auto made = [&]() -> Result<Ref<SharedMemory>> {
    auto file = make_memfd("tensorwire-shared", file_size);
    if (!file) return file.status();
    if (Status status = seal_memfd(file->get(), kSharedSeals); !status.ok()) return status;
    auto map = MemoryMap::map(file->get(), file_size, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (!map) return map.status();
    wish_huge_pages(map->data(), map->size());
    auto memory =
        Ref<SharedMemory>::adopt(new SharedMemory(*this, std::move(*file), std::move(*map), size));
    reserved.bytes = 0;
    new (&memory->words()) SharedWords;
    return memory;
  }();
  if (!made) return made;
  const MutexLock lock(mutex_);
  memories_.emplace((*made)->data(), made->get());
  return made;
}

Ref<SharedMemory> SharedMemories::find(const void* p, size_t size) {
  const auto* const at = static_cast<const std::byte*>(p);
  const MutexLock lock(mutex_);
  auto next = memories_.upper_bound(at);
  if (next == memories_.begin()) return nullptr;
  SharedMemory& memory = *std::prev(next)->second;
  const auto offset = static_cast<size_t>(at - memory.data());
  if (offset > memory.size() || size > memory.size() - offset) return nullptr;
  return memory.try_retain() ? Ref<SharedMemory>::adopt(&memory) : nullptr;
}

SharedStats SharedMemories::stats() const {
  const MutexLock lock(mutex_);
  return {limit_, bytes_, memories_.size()};
}

void SharedMemories::forget(const SharedMemory& memory) noexcept {
  const MutexLock lock(mutex_);
  memories_.erase(memory.data());
  bytes_ -= memory.size();
}

}  // namespace tw
