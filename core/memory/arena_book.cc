// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_book.h"

#include <algorithm>
#include <new>
#include <tuple>

namespace tw {
namespace {

// What blocks that do not share pages are multiples of.
size_t granule() { return std::max(page_size(), size_t{4096}); }

}  // namespace

ArenaBook::ArenaBook(size_t capacity, size_t slab_size)
    : capacity_(capacity),
      slab_size_(round_up(std::max<size_t>(std::min(slab_size, capacity), 1), granule())),
      dedicated_above_(slab_size_ / 4) {}

Result<ArenaBook::Extent> ArenaBook::take(size_t size) {
  if (size <= SmallCells::kLargest) return take_small(size);
  auto place = take_range(round_up(size, granule()));
  if (!place) return place.status();
  const auto& [home, at] = *place;
  if (!home) return Extent{};
  Range& range = at->second;  // a dedicated slab may be longer than asked for
  used_ += range.length;
  return Extent{home->slab.get(), at->first, range.length, &range.owner, range.fresh};
}

Result<ArenaBook::Extent> ArenaBook::take_small(size_t size) {
  const size_t index = SmallCells::class_of(std::max<size_t>(size, 1));
  if (small_[index].empty()) {
    const size_t run = round_up(size_t{64} << 10, granule());
    auto place = take_range(run);
    if (!place) return place.status();
    const auto& [home, at] = *place;
    if (!home) return Extent{};
    try {
      at->second.cells = std::make_unique<SmallCells>(SmallCells::class_size(index), run,
                                                      home->slab->index(), at->first);
      small_[index].reserve(small_[index].size() + 1);
    } catch (const std::bad_alloc&) {
      give_range(*home, at);
      throw;
    }
    list(*at->second.cells);
  }
  SmallCells& cells = *small_[index].back();
  const size_t offset = cells.take();
  if (cells.full()) unlist(cells);
  used_ += cells.cell();
  return Extent{homes_[cells.slab()]->slab.get(), offset, cells.cell(), cells.owner(offset)};
}

Result<ArenaBook::Place> ArenaBook::take_range(size_t size) {
  const bool large = size > dedicated_above_;
  for (;;) {
    Place place{};
    if (large) place = take_dedicated(size);
    if (!place.first) place = take_touched(size);
    if (!place.first && !large) place = take_dedicated(size);
    if (place.first) return place;
    auto fresh = take_fresh(size);
    if (!fresh || fresh->first) return fresh;
    if (!give_empty_runs() && !drop_oldest_idle(nullptr)) return Place{};
  }
}

ArenaBook::Place ArenaBook::take_touched(size_t size) {
  const auto fit = free_.lower_bound(Free{size, 0, 0});
  if (fit == free_.end()) return {};
  Home& home = *homes_[fit->slab];
  const auto at = home.ranges.find(fit->offset);
  Range& range = at->second;
  if (range.length > size) {
    // What may fail comes first.
    home.ranges.emplace_hint(std::next(at), at->first + size, Range{.length = range.length - size});
    auto rest = free_.extract(fit);
    rest.value() = Free{range.length - size, home.slab->index(), at->first + size};
    free_.insert(std::move(rest));
    range.length = size;
  } else {
    free_.erase(fit);
  }
  occupy(home, range);
  return {&home, at};
}

// A dedicated slab is reused whole, so not for much less than it holds.
ArenaBook::Place ArenaBook::take_dedicated(size_t size) {
  Home* best = nullptr;
  for (const auto& home : homes_) {
    if (!home || !home->dedicated || home->taken != 0) continue;
    if (home->mark < size || home->mark / 2 > size) continue;
    if (!best || home->mark < best->mark) best = home.get();
  }
  if (!best) return {};
  occupy(*best, best->ranges.begin()->second);
  return {best, best->ranges.begin()};
}

Result<ArenaBook::Place> ArenaBook::take_fresh(size_t size) {
  Home* home = nullptr;
  size_t fresh = size;
  if (size <= dedicated_above_) {
    size_t least = 0;
    for (const auto& candidate : homes_) {
      if (!candidate || candidate->dedicated) continue;
      // A slab whose first range could not be made has none.
      const auto last = candidate->ranges.rbegin();
      const bool at_a_range = last == candidate->ranges.rend() || last->second.taken;
      const size_t needed = size - (at_a_range ? 0 : last->second.length);
      if (candidate->slab->size() - candidate->mark < needed) continue;
      if (!home || needed < least) std::tie(home, least) = std::pair(candidate.get(), needed);
    }
    if (home) fresh = least;
  }
  if (fresh > capacity_ || resident_ > capacity_ - fresh) return Place{};
  if (!home) {
    const bool dedicated = size > dedicated_above_;
    auto added = add_slab(dedicated ? size : slab_size_, dedicated);
    if (!added) return added.status();
    home = *added;
  }
  auto at = home->ranges.end();
  if (fresh < size) {  // the free range below the mark becomes the beginning
    at = std::prev(at);
    free_.erase(Free{at->second.length, home->slab->index(), at->first});
    at->second.length = size;
  } else {
    at = home->ranges.emplace_hint(at, home->mark, Range{.length = size, .fresh = true});
  }
  occupy(*home, at->second);
  home->mark += fresh;
  resident_ += fresh;
  high_water_ = std::max(high_water_, resident_);
  return Place{home, at};
}

void ArenaBook::occupy(Home& home, Range& range) {
  if (home.taken == 0) idle_ -= home.mark;
  range.taken = true;
  home.taken += range.length;
}

void ArenaBook::give(const Slab& slab, size_t offset) {
  Home& home = *homes_[slab.index()];
  const auto at = std::prev(home.ranges.upper_bound(offset));
  if (!at->second.cells) {
    used_ -= at->second.length;
    give_range(home, at);
    return;
  }
  SmallCells& cells = *at->second.cells;
  used_ -= cells.cell();
  cells.give(offset);
  // A run that cannot be listed is when its next cell comes home.
  if (cells.listed == SmallCells::kUnlisted) {
    try {
      list(cells);
    } catch (const std::bad_alloc&) {
      return;
    }
  }
  // One run of each size is kept, so that a lone small block does not make and break one.
  if (cells.empty() && small_[SmallCells::class_of(cells.cell())].size() > 1) {
    unlist(cells);
    give_range(home, at);
  }
}

void ArenaBook::give_range(Home& home, Ranges::iterator at) {
  home.taken -= at->second.length;
  Range& range = at->second;
  range.taken = range.fresh = false;
  range.owner = nullptr;
  range.cells.reset();
  if (!home.dedicated) {
    const uint32_t index = home.slab->index();
    if (const auto next = std::next(at); next != home.ranges.end() && !next->second.taken) {
      free_.erase(Free{next->second.length, index, next->first});
      range.length += next->second.length;
      home.ranges.erase(next);
    }
    if (at != home.ranges.begin() && !std::prev(at)->second.taken) {
      const auto previous = std::prev(at);
      free_.erase(Free{previous->second.length, index, previous->first});
      previous->second.length += range.length;
      home.ranges.erase(at);
      at = previous;
    }
    // One that cannot be listed is when it is joined with a neighbour.
    try {
      free_.insert(Free{at->second.length, index, at->first});
    } catch (const std::bad_alloc&) {
    }
  }
  if (home.taken != 0) return;
  home.idle_since = now();
  idle_ += home.mark;
  // What has just become free is likely to be wanted again; of the rest half the cap may idle.
  try {
    while (idle_ > capacity_ / 2 && drop_oldest_idle(&home)) {
    }
  } catch (const std::bad_alloc&) {  // it idles on
  }
}

Result<ArenaBook::Home*> ArenaBook::add_slab(size_t size, bool dedicated) {
  const auto gap = std::find(homes_.begin(), homes_.end(), nullptr);
  const auto index = static_cast<uint32_t>(gap - homes_.begin());
  auto slab = Slab::make(index, ++last_generation_, size);
  if (!slab) return slab.status();
  auto home = std::make_unique<Home>();
  home->slab = std::move(*slab);
  home->dedicated = dedicated;
  if (index == homes_.size()) homes_.emplace_back();
  by_address_.emplace(home->slab->base(), home.get());
  reserved_ += size;
  Home* const added = home.get();
  homes_[index] = std::move(home);
  return added;
}

bool ArenaBook::drop_oldest_idle(const Home* spared) {
  Home* oldest = nullptr;
  for (const auto& home : homes_) {
    if (!home || home.get() == spared || home->taken != 0) continue;
    if (!oldest || home->idle_since < oldest->idle_since) oldest = home.get();
  }
  if (oldest) drop(*oldest);
  return oldest != nullptr;
}

void ArenaBook::drop(Home& home) {
  const uint32_t index = home.slab->index();
  dropped_.push_back(home.slab);  // what may fail comes first
  if (!home.dedicated) free_.erase(Free{home.mark, index, 0});
  by_address_.erase(home.slab->base());
  resident_ -= home.mark;
  idle_ -= home.mark;
  reserved_ -= home.slab->size();
  home.slab->drop();
  homes_[index].reset();
}

bool ArenaBook::give_empty_runs() {
  bool any = false;
  for (auto& runs : small_) {
    for (size_t i = runs.size(); i-- > 0;) {
      SmallCells& cells = *runs[i];
      if (!cells.empty()) continue;
      any = true;
      unlist(cells);
      Home& home = *homes_[cells.slab()];
      give_range(home, home.ranges.find(cells.offset()));
    }
  }
  return any;
}

void ArenaBook::list(SmallCells& cells) {
  auto& runs = small_[SmallCells::class_of(cells.cell())];
  runs.push_back(&cells);
  cells.listed = runs.size() - 1;
}

void ArenaBook::unlist(SmallCells& cells) {
  auto& runs = small_[SmallCells::class_of(cells.cell())];
  runs[cells.listed] = runs.back();
  runs[cells.listed]->listed = cells.listed;
  runs.pop_back();
  cells.listed = SmallCells::kUnlisted;
}

Block* ArenaBook::find(const void* p) {
  const auto* const address = static_cast<const std::byte*>(p);
  const auto next = by_address_.upper_bound(address);
  if (next == by_address_.begin()) return nullptr;
  Home& home = *std::prev(next)->second;
  const auto offset = static_cast<size_t>(address - home.slab->base());
  if (offset >= home.mark) return nullptr;
  Range& range = std::prev(home.ranges.upper_bound(offset))->second;
  if (!range.cells) return range.owner;
  Block** const owner = range.cells->owner(offset);
  return owner ? *owner : nullptr;
}

void ArenaBook::trim(Nanos idle_before) {
  give_empty_runs();
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (homes_[i] && homes_[i]->taken == 0 && homes_[i]->idle_since < idle_before) drop(*homes_[i]);
  }
}

}  // namespace tw
