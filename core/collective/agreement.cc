// SPDX-License-Identifier: Apache-2.0
#include "collective/agreement.h"

#include <utility>

namespace tw::collective {

std::optional<NumberedCall> Agreement::untold(size_t links) {
  if (current_.sequence == 0) return std::nullopt;
  const Told now{current_.sequence, links};
  if (std::exchange(told_, now) == now) return std::nullopt;
  return current_;
}

std::optional<Agreement::Odd> Agreement::odd() const {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  const MutexLock lock(mutex_);
  for (size_t rank = 0; rank < heard_.size(); ++rank) {
    const NumberedCall& theirs = heard_[rank];
    const NumberedCall& mine = own_[theirs.sequence % kKept];
    if (theirs.sequence != 0 && mine.sequence == theirs.sequence && mine.call != theirs.call)
      return Odd{static_cast<int>(rank), mine.call, theirs.call};
  }
  return std::nullopt;
}

void Agreement::heard(int rank, const NumberedCall& theirs) {
  {
    const MutexLock lock(mutex_);
    heard_[static_cast<size_t>(rank)] = theirs;
  }
  any_.store(true, std::memory_order_release);
}

}  // namespace tw::collective
