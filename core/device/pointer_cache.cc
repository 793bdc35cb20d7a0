// SPDX-License-Identifier: Apache-2.0
#include "device/pointer_cache.h"

namespace tw::device {

Result<Allocation> PointerCache::find(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uint64_t generation;
  {
    const MutexLock lock(mutex_);
    const auto after = known_.upper_bound(address);
    if (after != known_.begin()) {
      const auto& [begin, allocation] = *std::prev(after);
      if (address - begin < allocation.size) return allocation;
    }
    generation = generation_;
  }
  auto answer = driver_.allocation_of(pointer);
  if (!answer || answer->base == nullptr || answer->size == 0) return answer;
  const auto begin = reinterpret_cast<uintptr_t>(answer->base);
  const MutexLock lock(mutex_);
  if (generation != generation_) return answer;
  drop(begin, begin + answer->size);
  known_.emplace(begin, *answer);
  return answer;
}

void PointerCache::forget(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const MutexLock lock(mutex_);
  ++generation_;
  drop(begin, begin + bytes);
}

void PointerCache::drop(uintptr_t begin, uintptr_t end) {
  auto at = known_.lower_bound(begin);
  if (at != known_.begin()) {
    const auto before = std::prev(at);
    if (begin - before->first < before->second.size) at = before;
  }
  while (at != known_.end() && at->first < end) at = known_.erase(at);
}

}  // namespace tw::device
