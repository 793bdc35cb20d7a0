// SPDX-License-Identifier: Apache-2.0
#include "memory/slab.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/text.h"
#include "memory/huge_pages.h"

namespace tw {

Result<Ref<Slab>> Slab::make(uint32_t index, uint32_t generation, size_t size) {
  auto writable = make_memfd("tensorwire-slab", size);
  if (!writable) return writable.status();
  // The owner's only mapping comes before the seals, which forbid any other that can write.
  auto map = MemoryMap::map_lazily(writable->get(), size, MAP_SHARED);
  if (!map) return map.status();
  wish_huge_pages(map->data(), map->size());
  if (Status status = seal_memfd(writable->get(), kOwnedSeals); !status.ok()) return status;
  auto readable = reopen_read_only(writable->get());
  if (!readable) return readable.status();
  return Ref<Slab>::adopt(new Slab(index, generation, std::move(*map), std::move(*readable)));
}

Status Slab::shareable() const {
  if (index_ < PeerArena::kMaxSlabs) return {};
  return {Code::kResourceExhausted, text({"peers take in ", PeerArena::kMaxSlabs,
                                          " slabs of an arena, and this one has more"})};
}

Result<Located> Slab::harmless(std::span<const std::byte> bytes) {
  const MutexLock lock(mutex_);
  if (!private_) {
    Fd fd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!fd) return errno_status(Code::kResourceExhausted, "a descriptor of a slab", errno);
    auto mapping = SlabMapping::map(std::move(fd), {index_, generation_, size()});
    if (!mapping) return mapping.status();
    private_ = std::move(*mapping);
  }
  return Located{private_,
                 private_->bytes(static_cast<uint64_t>(bytes.data() - base()), bytes.size())};
}

}  // namespace tw
