// SPDX-License-Identifier: Apache-2.0
// How long it is believed what was found out about the way to a worker, and who asks anew.
#pragma once

#include <chrono>

namespace tensorwire {

// Of one worker. Its owner holds a lock.
class Belief {
 public:
  using Clock = std::chrono::steady_clock;

  // What is known: nothing of use, a way to go, or that there is none but those that the user rules
  // out.
  enum class Known { kNothing, kWay, kRefusal };
  struct Advice {
    bool use;  // what is known; else the answer is waited for
    bool ask;  // nobody does yet: ask the worker, and tell what came of it
  };
  // For somebody who needs the way. One that is no longer believed is used until there is news of
  // it, because asking may take long. A refusal is not: who gets it fails.
  Advice consult(Known known, Clock::time_point now);

  // What came of asking. A link; `until`: when a better one may be had.
  void linked(Clock::time_point until);
  // No link is to be had as things are, which costs little to be told again.
  void declined(Clock::time_point now);
  // No link could be made, which may have taken long to find out.
  void unreached(Clock::time_point now);
  // The worker has not answered.
  void unanswered(Clock::time_point now);

 private:
  void settle(Clock::time_point until);

  bool asking_ = false;
  int failures_ = 0;  // unreached() in a row
  Clock::time_point until_{};
};

}  // namespace tensorwire
