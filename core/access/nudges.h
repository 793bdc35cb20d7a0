// SPDX-License-Identifier: Apache-2.0
// Waits for changes of memory that is made to be accessed. Whoever changes it nudges the memory
// itself, over whatever link, so that one can wait for several, without any link. Devices alone
// store without a nudge.
#pragma once

#include <algorithm>
#include <span>

#include "base/ref.h"
#include "base/status.h"
#include "engine/spin.h"
#include "engine/waiting.h"
#include "engine/word_waits.h"

namespace tw {

// A sleeper looks up this often: a peer that scribbles could keep it from being woken.
inline constexpr Nanos kGlance = 250 * kMillisecond;
// ... and this often where somebody may change the memory without a nudge.
inline constexpr Nanos kCloseGlance = kMillisecond;

inline Nanos glance_at(const SharedMemory& memory) {
  return memory.devices.load(std::memory_order_relaxed) != 0 ? kCloseGlance : kGlance;
}

// Until done(), of which a change in one of these memories may be the reason; kMaxFutexWords at
// most. Polls for `spin`, and looks up every glance() then.
template <class Done, class Glance>
Waited wait_nudged(std::span<SharedWords* const> memories, Done&& done, Nanos spin, Glance&& glance,
                   Nanos deadline) {
  if (done()) return Waited::kDone;
  const Nanos began = now();
  const Nanos spin_until = single_cpu() ? began : began + spin;
  for (Nanos at = began; at < std::min(spin_until, deadline); at = now()) {
    for (int i = 0; i < 16; ++i) {
      cpu_relax();
      if (done()) return Waited::kDone;
    }
  }
  for (;;) {
    const FutexWait slept = sleep(memories, done, std::min(deadline, now() + glance()));
    if (done()) return Waited::kDone;
    if (slept == FutexWait::kSignal) return Waited::kSignal;
    if (now() >= deadline) return Waited::kTimeout;
  }
}

// A word that somebody waits for. `nudges`: of the memory, before he looked at anything else.
struct AwaitedWord {
  SharedMemory* memory;
  uint64_t offset;
  uint64_t at_least;
  uint32_t nudges;
};

// INVALID_ARGUMENT, OUT_OF_RANGE.
Status check(const AwaitedWord& word);
// Until one of the words is at least so much, or one of their memories was nudged.
Waited wait_any(std::span<const AwaitedWord> words, Nanos spin, Nanos deadline);
// Has those who wait for words of this memory look at more than the words.
void nudge(SharedMemory& memory);
// How often that was done, for an AwaitedWord.
uint32_t nudges_of(const SharedMemory& memory);

}  // namespace tw
