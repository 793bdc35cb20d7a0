// SPDX-License-Identifier: Apache-2.0
#include "call/trial.h"

#include <algorithm>

namespace tw {

void Trial::begin(Link& link, std::span<OutSegment> segments) {
  size_t largest = 0;
  for (const OutSegment& segment : segments) largest = std::max(largest, segment.size);
  if (!link.online()->tries(largest)) return;
  turn_ = link.online()->begin(largest);
  decide(segments, turn_.eager_bytes, link.profile().coalesce_bytes);
  if (turn_.other) link.count_trial();
  if (turn_.pair == 0) return;
  link_ = &link;
  begun_ = now();
}

// One that failed took as long as whatever it failed by.
void Trial::tell(const ClientCall& call) {
  if (call.outcome().code != Code::kOk) return;
  if (link_->online()->end(turn_, now() - begun_)) link_->count_threshold_move();
}

}  // namespace tw
