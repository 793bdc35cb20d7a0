// SPDX-License-Identifier: Apache-2.0
// A call among those by whose time a link finds the threshold that suits it.
#pragma once

#include <span>

#include "base/clock.h"
#include "call/client.h"
#include "message/threshold_trial.h"

namespace tw {

class Trial {
 public:
  // Before the message is staged: may decide how it goes. Without a link that adjusts a threshold,
  // which is the rule, this costs a look.
  Trial(Link& link, std::span<OutSegment> segments) {
    if (link.online()) begin(link, segments);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  // Somebody has waited for its end.
  void ended(const ClientCall& call) {
    if (link_) tell(call);
  }

 private:
  void begin(Link& link, std::span<OutSegment> segments);
  void tell(const ClientCall& call);

  Link* link_ = nullptr;  // null: the call's time does not count
  ThresholdTrial::Turn turn_{};
  Nanos begun_ = 0;
};

}  // namespace tw
