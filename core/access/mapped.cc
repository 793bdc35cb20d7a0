// SPDX-License-Identifier: Apache-2.0
#include "access/mapped.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/text.h"
#include "engine/word_waits.h"
#include "wire/bytes.h"

namespace tw {

using wire::OperationKind;

namespace {

bool is_word(const std::byte* at, uint64_t length) {
  return length == sizeof(uint64_t) && reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) == 0;
}

std::atomic_ref<uint64_t> word(std::byte* at) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(at));
}

// Of one run. A word is read and written as a whole.
void read(Copier& copier, std::byte* to, std::byte* from, uint64_t length) {
  if (is_word(from, length)) {
    const uint64_t value = word(from).load(std::memory_order_acquire);
    std::memcpy(to, &value, sizeof value);
  } else if (length != 0) {
    copier.copy(to, from, length);
  }
}

void write(Copier& copier, std::byte* to, const std::byte* from, uint64_t length) {
  if (is_word(to, length)) {
    uint64_t value;
    std::memcpy(&value, from, sizeof value);
    word(to).store(value, std::memory_order_release);
  } else if (length != 0) {
    copier.copy(to, from, length);
  }
}

Status link_over() { return {Code::kUnavailable, "the peer has closed the link"}; }

}  // namespace

Status MappedRegions::add(const wire::Region& region, Ref<MappedMemory> memory) {
  const bool changes = (region.rights & (kMayWrite | kMayUpdate)) != 0;
  if (changes != memory->writable())
    return wire::protocol_error({"REGION frame: rights are ", region.rights,
                                 ", of memory that was handed over ",
                                 memory->writable() ? "writable" : "read-only"});
  if (region.address > memory->size() || region.length > memory->size() - region.address)
    return wire::protocol_error({"REGION frame: ", region.length, " bytes at ", region.address,
                                 " of memory of ", memory->size(), " bytes"});
  if ((region.rights & kMayUpdate) != 0 && region.address % sizeof(uint64_t) != 0)
    return wire::protocol_error(
        {"REGION frame: address is ", region.address, ", where nothing can be updated"});
  const MutexLock lock(mutex_);
  regions_.emplace(region.id, Mapped{region, std::move(memory)});
  return {};
}

void MappedRegions::refuse(uint64_t region, Status why) {
  const MutexLock lock(mutex_);
  refused_.emplace(region, std::move(why));
}

void MappedRegions::remove(uint64_t region) {
  Ref<MappedMemory> memory;  // unmapped without the lock
  const MutexLock lock(mutex_);
  refused_.erase(region);
  auto it = regions_.find(region);
  if (it == regions_.end()) return;
  memory = std::move(it->second.memory);
  regions_.erase(it);
}

void MappedRegions::clear() {
  std::unordered_map<uint64_t, Mapped> regions;  // likewise
  const MutexLock lock(mutex_);
  regions_.swap(regions);
  refused_.clear();
}

bool MappedRegions::holds(uint64_t region) {
  const MutexLock lock(mutex_);
  return regions_.contains(region);
}

Status MappedRegions::refused(uint64_t region) {
  const MutexLock lock(mutex_);
  const auto found = refused_.find(region);
  return found == refused_.end() ? Status{} : found->second;
}

size_t MappedRegions::size() const {
  const MutexLock lock(mutex_);
  return regions_.size();
}

bool MappedRegions::done(uint64_t bytes) {
  operations_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

std::optional<MappedRegions::Mapped> MappedRegions::find(uint64_t region, bool writing) {
  const MutexLock lock(mutex_);
  auto it = regions_.find(region);
  if (it == regions_.end() || (writing && it->second.region.key == wire::kInArena))
    return std::nullopt;
  return it->second;
}

Result<MappedRegions::Entered> MappedRegions::enter(const Mapped& mapped) {
  Entered entered{mapped.region, MappedMemory::Visit(mapped.memory)};
  switch (entered.visit.state()) {
    case Door::kOpen:
      return entered;
    case Door::kLinkOver:
      return link_over();
    default:
      return no_such_region(mapped.region.id);
  }
}

Status MappedRegions::run(const AccessRequest& request, const Entered& in) {
  std::byte* there = in.at(request.offset);
  switch (request.kind) {
    case OperationKind::kRead:
    case OperationKind::kWrite:
    case OperationKind::kWriteImmediate: {
      std::byte* here = request.local;
      for (uint64_t i = 0; i < request.count; ++i) {
        if (request.kind == OperationKind::kRead)
          read(copier_, here, there, request.length);
        else
          write(copier_, there, here, request.length);
        there += request.stride;
        here += request.local_stride;
      }
      break;
    }
    case OperationKind::kFetchAdd:
    case OperationKind::kCompareSwap: {
      uint64_t before = request.expected;
      if (request.kind == OperationKind::kFetchAdd)
        before = word(there).fetch_add(request.operand, std::memory_order_acq_rel);
      else
        word(there).compare_exchange_strong(before, request.operand, std::memory_order_acq_rel);
      std::memcpy(request.local, &before, sizeof before);
      break;
    }
  }
  if (request.kind == OperationKind::kRead)
    return in.visit.state_since() == Door::kLinkOver ? link_over() : Status{};
  tell(in.visit->words());
  return {};
}

Result<bool> MappedRegions::run(const AccessRequest& request, const std::optional<Signal>& signal,
                                bool writing) {
  // The owner's processor has to hear of an immediate.
  if (request.kind == OperationKind::kWriteImmediate) return false;
  const auto mapped = find(request.region, writing);
  if (!mapped) return false;
  if (wire::updates(request.kind) && request.length != sizeof(uint64_t))
    return Status{Code::kInvalidArgument, "an atomic works on 8 bytes"};
  if (Status status = check_access(request, mapped->region); !status.ok()) return status;
  if (!signal) {
    auto in = enter(*mapped);
    if (!in) return in.status();
    if (Status status = run(request, *in); !status.ok()) return status;
    return done(request.length * request.count);
  }
  const auto flags = find(signal->region, writing);
  if (!flags) return false;
  uint64_t value;
  const AccessRequest last = request_of(*signal, &value);
  if (Status status = check_signal(*signal, flags->region); !status.ok()) return status;
  auto in = enter(*mapped);
  if (!in) return in.status();
  auto flagged = enter(*flags);
  if (!flagged) return flagged.status();
  Status status = run(request, *in);
  if (status.ok()) status = run(last, *flagged);
  if (!status.ok()) return status;
  return done(request.length * request.count);
}

Result<bool> MappedRegions::run(const AccessBatch& batch, const std::optional<Signal>& signal,
                                bool writing) {
  std::vector<Entered> entered;
  entered.reserve(batch.regions().size() + 1);
  const auto add = [&](uint64_t region) -> Result<bool> {
    const auto mapped = find(region, writing);
    if (!mapped) return false;
    auto in = enter(*mapped);
    if (!in) return in.status();
    entered.push_back(std::move(*in));
    return true;
  };
  for (const uint64_t region : batch.regions())
    if (auto added = add(region); !added || !*added) return added;
  if (signal)
    if (auto added = add(signal->region); !added || !*added) return added;
  const Entered* in = entered.data();
  for (const AccessRequest& request : batch.requests()) {
    if (in->region.id != request.region)
      in = &*std::ranges::find(entered, request.region,
                               [](const Entered& one) { return one.region.id; });
    if (Status status = run(request, *in); !status.ok()) return status;
  }
  if (signal) {
    uint64_t value;
    if (Status status = run(request_of(*signal, &value), entered.back()); !status.ok())
      return status;
  }
  return done(batch.bytes());
}

}  // namespace tw
