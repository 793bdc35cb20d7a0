// SPDX-License-Identifier: Apache-2.0
// What links find about thresholds while calls go: for each transport and host, common to all links
// of the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "base/mutex.h"
#include "base/ref.h"
#include "message/threshold_trial.h"

namespace tw {

// Up to which size segments are copied along. Thread-safe.
class OnlineThreshold final : public RefCounted {
 public:
  // What is coalesced is copied along, too: below that nothing would differ.
  OnlineThreshold(size_t eager_bytes, size_t coalesce_bytes);

  size_t eager_bytes() const { return eager_bytes_.load(std::memory_order_relaxed); }
  // By calls.
  bool moved() const { return eager_bytes() != first_; }
  // Whether begin() is for a call with this largest segment.
  bool tries(size_t largest) const {
    return largest > above_.load(std::memory_order_relaxed) &&
           largest <= up_to_.load(std::memory_order_relaxed);
  }
  // As ThresholdTrial's.
  ThresholdTrial::Turn begin(size_t largest);
  bool end(const ThresholdTrial::Turn& turn, Nanos took);

 private:
  void tell() TW_REQUIRES(mutex_);

  const size_t first_;
  Mutex mutex_;  // guards trial_
  ThresholdTrial trial_ TW_GUARDED_BY(mutex_);
  // What it says, for those who look without the lock.
  std::atomic<size_t> eager_bytes_, above_{0}, up_to_{0};
};

class OnlineThresholds {
 public:
  // For links by `transport` to `host`, which begin with these sizes. Null: there are so many hosts
  // that those of others stay as they are.
  Ref<OnlineThreshold> of(std::string_view transport, std::string_view host, size_t eager_bytes,
                          size_t coalesce_bytes);

 private:
  static constexpr size_t kMost = 1024;

  Mutex mutex_;  // guards found_
  // Links that coalesce otherwise may go less far.
  std::map<std::tuple<std::string, std::string, size_t>, Ref<OnlineThreshold>> found_
      TW_GUARDED_BY(mutex_);
};

}  // namespace tw
