// SPDX-License-Identifier: Apache-2.0
#include "access/nudges.h"

#include <vector>

#include "base/text.h"

namespace tw {

Status check(const AwaitedWord& word) {
  if (word.offset % sizeof(uint64_t) != 0)
    return {Code::kInvalidArgument, text({"a word begins at a multiple of 8 bytes, which offset ",
                                          word.offset, " is not"})};
  const size_t size = word.memory->size();
  if (word.offset > size || size - word.offset < sizeof(uint64_t))
    return {Code::kOutOfRange, text({"a word at offset ", word.offset,
                                     " is not inside shared memory of ", size, " bytes"})};
  return {};
}

Waited wait_any(std::span<const AwaitedWord> words, Nanos spin, Nanos deadline) {
  std::vector<SharedWords*> memories;
  memories.reserve(words.size());
  for (const AwaitedWord& word : words) memories.push_back(&word.memory->words());
  // The kernel takes no more: the others are looked at.
  if (memories.size() > kMaxFutexWords) memories.resize(kMaxFutexWords);
  const auto glance = [&] {
    Nanos least = memories.size() < words.size() ? kCloseGlance : kGlance;
    for (const AwaitedWord& word : words) least = std::min(least, glance_at(*word.memory));
    return least;
  };
  const auto done = [&] {
    return std::ranges::any_of(words, [](const AwaitedWord& word) {
      const std::atomic_ref value(*reinterpret_cast<uint64_t*>(word.memory->data() + word.offset));
      return value.load(std::memory_order_acquire) >= word.at_least ||
             nudges_of(*word.memory) != word.nudges;
    });
  };
  return wait_nudged(memories, done, spin, glance, deadline);
}

uint32_t nudges_of(const SharedMemory& memory) {
  return memory.nudges.load(std::memory_order_acquire);
}

void nudge(SharedMemory& memory) {
  memory.nudges.fetch_add(1, std::memory_order_release);
  tell(memory.words());
}

}  // namespace tw
