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
#include "collective/stage.h"
#include "memory/arena.h"

namespace tw::collective {

// Where an array lies in its rank's memory, as it tells the others.
struct ArrayPlace {
  uint64_t address = 0;
  uint64_t offset = 0;  // in the slab
  uint64_t slab_size = 0;
  int32_t descriptor = -1;  // of the slab; -1: the array lies outside the arena
  uint32_t slab = 0, generation = 0;
  uint32_t dropped : 31 = 0;          // slabs that the arena has given up so far
  uint32_t takes_the_result : 1 = 0;  // what this rank reduces goes there, and nowhere else

  bool in_arena() const { return descriptor >= 0; }
};

// Not thread-safe.
class ArenaArrays {
 public:
  // `memories` of the ranks, by their place; that of this rank is empty.
  ArenaArrays(Arena& arena, std::span<const std::optional<PeerMemory>> memories);

  // Whether this process maps what lies in another one's arena, and not in somebody else's. It has
  // that one's board.
  static bool reaches(const PeerMemory& memory, const Board& board);

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
