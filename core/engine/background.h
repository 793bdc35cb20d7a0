// The one background thread of a process: it runs a Poller and never touches Python.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "engine/poller.h"

namespace tw {

class Background {
 public:
  static Result<std::unique_ptr<Background>> start();
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
