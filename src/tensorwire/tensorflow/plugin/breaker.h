// SPDX-License-Identifier: Apache-2.0
// Where links by RDMA to a worker keep failing, they are passed over for a while.
#pragma once

#include <chrono>
#include <string>

namespace tensorwire {

// Of one worker. Its owner holds a lock.
class Breaker {
 public:
  using Clock = std::chrono::steady_clock;

  // A link to the worker's same process has ended; `lived`: for how long.
  void died(Clock::duration lived, std::string why);
  // None could be made.
  void unreached(std::string why);

  // Until then links by RDMA are passed over.
  Clock::time_point until() const { return until_; }
  const std::string& why() const { return why_; }
  // Whether they are passed over and nobody was told; true once, until a link was good again.
  bool news();

 private:
  void fail(std::string why, bool pause);

  int failures_ = 0;
  Clock::time_point until_{};
  std::string why_;
  bool told_ = false;
};

}  // namespace tensorwire
