// SPDX-License-Identifier: Apache-2.0
// Arrays that lie in the arenas of ranks of one host: others read them through a mapping, without a
// copy of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/peer_memory.h"
#include "collective/wire.h"
#include "memory/arena.h"

namespace tw::collective {

// Not thread-safe.
class ArenaArrays {
 public:
  // `memories` of the ranks, by their place; that of this rank is empty.
  ArenaArrays(Arena& arena, std::span<const std::optional<PeerMemory>> memories);

  // Whether this process maps what lies in another one's arena, and not in somebody else's: there
  // it finds the stage that was announced.
  static bool reaches(const PeerMemory& memory, const StagePlace& place);

  // `size` is that of the array. A slab stays where it is while it has a live block: the array is
  // the operation's until that is over.
  ArrayPlace place_of(const std::byte* array, size_t size) const;
  // Another rank's, which lies in its arena, mapped here. Good until the next one of that rank.
  Result<const std::byte*> find(int rank, const ArrayPlace& place, size_t size);

 private:
  // What is mapped of a rank's arena. What that gives up is let go with the next array.
  struct Mapped {
    uint32_t dropped = 0;                                      // as an array's place says it
    std::map<std::pair<uint32_t, uint32_t>, MemoryMap> slabs;  // by index and generation
  };

  Arena& arena_;
  const std::span<const std::optional<PeerMemory>> memories_;
  std::vector<Mapped> mapped_;
};

}  // namespace tw::collective
