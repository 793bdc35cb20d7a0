// SPDX-License-Identifier: Apache-2.0
#include "collective/peer_allocations.h"

#include <atomic>
#include <iterator>
#include <utility>

namespace tw::collective {

uint64_t ExportedAllocations::next_generation() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t ExportedAllocations::generation(uint64_t operation) {
  std::erase_if(known_, [&](const auto& each) {
    const auto& [base, known] = each;
    if (known.last + kKeptOperations < operation) return true;
    const auto id = driver_.allocation_id(base);
    if (id && *id == known.id) return false;
    generation_ = next_generation();
    return true;
  });
  return generation_;
}

std::optional<ExportedAllocations::Place> ExportedAllocations::place_of(const std::byte* array,
                                                                        uint64_t operation) {
  if (auto after = known_.upper_bound(array); after != known_.begin()) {
    auto& [base, known] = *std::prev(after);
    const auto offset = static_cast<uint64_t>(array - base);
    if (offset < known.size) {
      known.last = operation;
      return Place{known.handle, offset};
    }
  }
  const auto found = driver_.allocation_of(array);
  if (!found || !found->exportable || found->device != device_) return {};
  const auto handle = driver_.export_memory(device_, found->base);
  if (!handle) return {};
  known_.insert_or_assign(found->base, Known{found->id, found->size, *handle, operation});
  return Place{*handle, static_cast<uint64_t>(array - found->base)};
}

void PeerAllocations::hear(int rank, uint64_t generation) {
  OfRank& theirs = ranks_[rank];
  if (theirs.generation != generation) theirs.kept.clear();
  theirs.generation = generation;
}

Result<PeerAllocations::Opened> PeerAllocations::open(int rank, const device::IpcHandle& handle,
                                                      uint64_t operation) {
  OfRank& theirs = ranks_[rank];
  auto at = theirs.kept.find(handle);
  if (at == theirs.kept.end()) {
    auto base = driver_.import_memory(device_, handle);
    if (!base) return base.status();
    device::ImportedMemory memory(driver_, device_, *base);
    const auto found = driver_.allocation_of(*base);
    if (!found) return found.status();
    at = theirs.kept.emplace(handle, Kept{std::move(memory), found->size, operation}).first;
  }
  at->second.last = operation;
  return Opened{at->second.memory.get(), at->second.size};
}

void PeerAllocations::trim(uint64_t operation) {
  for (auto& [rank, theirs] : ranks_)
    std::erase_if(theirs.kept, [&](const auto& each) {
      return each.second.last + kKeptOperations <= operation;
    });
}

void PeerAllocations::abandon() {
  for (auto& [rank, theirs] : ranks_) {
    for (auto& [handle, kept] : theirs.kept) kept.memory.abandon();
    theirs.kept.clear();
  }
}

}  // namespace tw::collective
