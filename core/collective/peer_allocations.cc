// SPDX-License-Identifier: Apache-2.0
#include "collective/peer_allocations.h"

#include <atomic>
#include <utility>

namespace tw::collective {

void ExportedAllocations::add(const device::Allocation& allocation, uint64_t operation) {
  known_.insert_or_assign(allocation.base, Known{allocation.id, operation});
}

uint64_t ExportedAllocations::next_generation() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t ExportedAllocations::generation(uint64_t operation) {
  std::erase_if(known_, [&](const auto& each) {
    const auto& [base, known] = each;
    if (known.last + kKeptOperations < operation) return true;
    const auto found = driver_.allocation_of(base);
    if (found && found->base == base && found->id == known.id) return false;
    generation_ = next_generation();
    return true;
  });
  return generation_;
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
