// SPDX-License-Identifier: Apache-2.0
// A thread that runs a Poller and never touches Python.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "engine/poller.h"

namespace tw {

class Background {
 public:
  // `name`: of the thread, 15 characters at most. RESOURCE_EXHAUSTED: no thread is to be had.
  static Result<std::unique_ptr<Background>> start(const char* name);
  ~Background();

  Poller& poller() { return *poller_; }
  // Joins the thread; what is watched stays watched, by nobody.
  void stop();

 private:
  Background() = default;

  std::unique_ptr<Poller> poller_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tw
