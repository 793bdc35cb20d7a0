// SPDX-License-Identifier: Apache-2.0
// The arena's book-keeping: which slabs there are and which of their bytes are taken. No locks and
// no waiting: the arena calls it under its mutex. It lives in private memory, never in the slabs.
//
// Pages that were touched once are dear, and a sealed slab gives none of them back before it is
// dropped. So each slab has a mark below which everything was handed out at least once; free memory
// below the marks is used first, smallest fit first, and the marks rise only when nothing there
// fits. The sum of all marks is what the cap is about.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ref.h"
#include "base/status.h"
#include "memory/slab.h"
#include "memory/small_cells.h"

namespace tw {

class ArenaBook {
 public:
  struct Extent {
    Slab* slab = nullptr;
    size_t offset = 0;
    size_t length = 0;
    Block** owner = nullptr;  // where the book notes the block that this becomes
    bool fresh = false;       // none of it has been handed out before
  };

  ArenaBook(size_t capacity, size_t slab_size);

  // Memory for `size` bytes. A null slab: the cap does not allow it now. An error: the system has
  // refused a slab.
  Result<Extent> take(size_t size);
  void give(const Slab& slab, size_t offset);
  // The block that holds `p`, or null.
  Block* find(const void* p);

  // Drops slabs that have been free since before `idle_before`.
  void trim(Nanos idle_before);
  // Slabs dropped since the last call. Letting them go unmaps them, which takes long: do it without
  // the lock.
  std::vector<Ref<Slab>> take_dropped() noexcept { return std::exchange(dropped_, {}); }

  size_t resident() const { return resident_; }
  size_t high_water() const { return high_water_; }
  size_t reserved() const { return reserved_; }
  size_t used() const { return used_; }
  size_t slabs() const { return by_address_.size(); }

 private:
  struct Range {
    size_t length = 0;
    bool taken = false;
    bool fresh = false;  // taken, and for the first time
    Block* owner = nullptr;
    std::unique_ptr<SmallCells> cells = nullptr;
  };
  using Ranges = std::map<size_t, Range>;  // by offset; without gaps up to the mark
  struct Home {
    Ref<Slab> slab;
    bool dedicated = false;  // holds one block at a time
    size_t mark = 0;
    size_t taken = 0;      // bytes
    Nanos idle_since = 0;  // while nothing is taken
    Ranges ranges;
  };
  struct Free {
    size_t length;
    uint32_t slab;
    size_t offset;
    friend auto operator<=>(const Free&, const Free&) = default;
  };
  using Place = std::pair<Home*, Ranges::iterator>;  // null home: the cap does not allow it

  Result<Extent> take_small(size_t size);
  Result<Place> take_range(size_t size);
  Place take_touched(size_t size);
  Place take_dedicated(size_t size);
  Result<Place> take_fresh(size_t size);
  void occupy(Home& home, Range& range);
  void give_range(Home& home, Ranges::iterator at);
  Result<Home*> add_slab(size_t size, bool dedicated);
  bool drop_oldest_idle(const Home* spared);
  void drop(Home& home);
  bool give_empty_runs();
  void list(SmallCells& cells);
  void unlist(SmallCells& cells);

  const size_t capacity_;
  const size_t slab_size_;
  const size_t dedicated_above_;
  std::vector<std::unique_ptr<Home>> homes_;  // by slab index; null where dropped
  std::map<const std::byte*, Home*> by_address_;
  std::set<Free> free_;  // free ranges of standard slabs
  std::array<std::vector<SmallCells*>, SmallCells::kClasses> small_;  // runs with free cells
  std::vector<Ref<Slab>> dropped_;
  uint32_t last_generation_ = 0;
  size_t resident_ = 0;
  size_t high_water_ = 0;
  size_t reserved_ = 0;
  size_t idle_ = 0;  // bytes below the marks of wholly free slabs
  size_t used_ = 0;  // bytes of live blocks
};

}  // namespace tw
