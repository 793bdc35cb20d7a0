// SPDX-License-Identifier: Apache-2.0
// What a link counts.
#include <algorithm>

#include "link/link.h"

namespace tw {

void Link::count_copy(uint64_t bytes) {
  const MutexLock lock(stats_mutex_);
  ++copies_;
  copied_bytes_ += bytes;
}

void Link::count_crowded(Status why) {
  tell_crowded(why);
  const MutexLock lock(stats_mutex_);
  ++crowded_;
  crowded_why_ = std::move(why);
}

Thresholds Link::thresholds() const {
  Thresholds told = thresholds_;
  if (online_ && online_->moved()) {
    constexpr auto kPlace = static_cast<size_t>(Threshold::kEager);
    told.bytes[kPlace] = online_->eager_bytes();
    told.sources[kPlace] = Source::kOnline;
  }
  return told;
}

LinkStats::Class& Link::class_of(uint64_t bytes) {
  const auto at =
      std::lower_bound(LinkStats::kClassLimits.begin(), LinkStats::kClassLimits.end(), bytes);
  return classes_[static_cast<size_t>(at - LinkStats::kClassLimits.begin())];
}

LinkStats Link::stats() {
  LinkStats stats;
  {
    const MutexLock lock(send_mutex_);
    stats.sent = sender_.counters();
    stats.leases = sender_.leases();
    stats.leased_bytes = sender_.leased_bytes();
    stats.unshared = sender_.unshared();
    stats.crowded_why = sender_.crowded();
    stats.accesses = memory_->counters();
    stats.unmapped_why = memory_->unmapped();
    const auto [late, why] = transport_->not_handed();
    stats.accesses.unhanded += late;
    if (stats.unmapped_why.ok()) stats.unmapped_why = why;
  }
  stats.received = received_;
  stats.facts = transport_->facts();
  stats.fetches = fetching();
  stats.backlog = backlog();
  stats.spins = spins_.load(std::memory_order_relaxed);
  stats.sleeps = sleeps_.load(std::memory_order_relaxed);
  stats.background_wakes = background_wakes_.load(std::memory_order_relaxed);
  stats.trials = trials_.load(std::memory_order_relaxed);
  stats.threshold_moves = threshold_moves_.load(std::memory_order_relaxed);
  stats.views = views_.load(std::memory_order_relaxed);
  stats.unmapped = unmapped_.load(std::memory_order_relaxed);
  const MutexLock lock(stats_mutex_);
  stats.copies = copies_;
  stats.copied_bytes = copied_bytes_;
  stats.sent.crowded_segments += crowded_;
  if (!crowded_why_.ok()) stats.crowded_why = crowded_why_;
  stats.classes = classes_;
  return stats;
}

}  // namespace tw
