// SPDX-License-Identifier: Apache-2.0
#include "process/online_thresholds.h"

#include <algorithm>

namespace tw {
namespace {

// Beyond these all ways of sending cost so much, or so little, that none of them matters.
constexpr size_t kLowest = 1 << 10, kHighest = 256 << 10;

}  // namespace

OnlineThreshold::OnlineThreshold(size_t eager_bytes, size_t coalesce_bytes)
    : first_(std::max(eager_bytes, coalesce_bytes)),
      trial_(first_, std::max(kLowest, coalesce_bytes), kHighest),
      eager_bytes_(first_) {
  const MutexLock lock(mutex_);
  tell();
}

ThresholdTrial::Turn OnlineThreshold::begin(size_t largest) {
  const MutexLock lock(mutex_);
  const ThresholdTrial::Turn turn = trial_.begin(largest);
  tell();
  return turn;
}

bool OnlineThreshold::end(const ThresholdTrial::Turn& turn, Nanos took) {
  const MutexLock lock(mutex_);
  const bool moved = trial_.end(turn, took);
  tell();
  return moved;
}

void OnlineThreshold::tell() {
  eager_bytes_.store(trial_.eager_bytes(), std::memory_order_relaxed);
  above_.store(trial_.above(), std::memory_order_relaxed);
  up_to_.store(trial_.up_to(), std::memory_order_relaxed);
}

Ref<OnlineThreshold> OnlineThresholds::of(std::string_view transport, std::string_view host,
                                          size_t eager_bytes, size_t coalesce_bytes) {
  const MutexLock lock(mutex_);
  const std::tuple key(std::string(transport), std::string(host), coalesce_bytes);
  if (const auto found = found_.find(key); found != found_.end()) return found->second;
  if (found_.size() == kMost) return nullptr;
  return found_.emplace(key, make_ref<OnlineThreshold>(eager_bytes, coalesce_bytes)).first->second;
}

}  // namespace tw
