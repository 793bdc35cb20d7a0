// SPDX-License-Identifier: Apache-2.0
#include "access/told.h"

#include <vector>

#include "base/text.h"

namespace tw {

Status check(const ToldWord& word) {
  if (word.offset % sizeof(uint64_t) != 0)
    return {Code::kInvalidArgument, text({"a word begins at a multiple of 8 bytes, which offset ",
                                          word.offset, " is not"})};
  const size_t size = word.memory->size();
  if (word.offset > size || size - word.offset < sizeof(uint64_t))
    return {Code::kOutOfRange, text({"a word at offset ", word.offset,
                                     " is not inside shared memory of ", size, " bytes"})};
  return {};
}

Waited wait_any(std::span<const ToldWord> words, Nanos spin, Nanos deadline) {
  std::vector<SharedWords*> told;
  told.reserve(words.size());
  Nanos glance = kGlance;
  for (const ToldWord& word : words) {
    if (word.memory->devices.load(std::memory_order_relaxed) != 0) glance = kMillisecond;
    told.push_back(&word.memory->words());
  }
  if (told.size() > kMaxFutexWords) {  // the kernel takes no more: it looks at the others
    told.resize(kMaxFutexWords);
    glance = kMillisecond;
  }
  const auto done = [&] {
    return std::ranges::any_of(words, [](const ToldWord& word) {
      const std::atomic_ref value(*reinterpret_cast<uint64_t*>(word.memory->data() + word.offset));
      return value.load(std::memory_order_acquire) >= word.at_least ||
             word.memory->nudges.load(std::memory_order_acquire) != word.nudges;
    });
  };
  return wait_told(told, done, {spin, glance}, deadline);
}

void nudge(SharedMemory& memory) {
  memory.nudges.fetch_add(1, std::memory_order_release);
  tell(memory.words());
}

}  // namespace tw
