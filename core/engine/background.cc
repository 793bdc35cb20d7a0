// SPDX-License-Identifier: Apache-2.0
#include "engine/background.h"

#include <pthread.h>

#include <string>
#include <system_error>

#include "base/signals.h"

namespace tw {

Result<std::unique_ptr<Background>> Background::start(const char* name) {
  std::unique_ptr<Background> background(new Background);
  auto poller = Poller::create();
  if (!poller) return poller.status();
  background->poller_ = std::move(*poller);
  const SignalsBlocked blocked;
  try {
    background->thread_ = std::thread([self = background.get(), name] {
      pthread_setname_np(pthread_self(), name);
      while (!self->stop_.load(std::memory_order_acquire)) self->poller_->poll(kForever);
    });
  } catch (const std::system_error& error) {
    return errno_status(Code::kResourceExhausted,
                        "cannot start the thread " + std::string(name) +
                            " (raise ulimit -u, or the limit on pids of the container)",
                        error.code().value());
  }
  return background;
}

Background::~Background() { stop(); }

void Background::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  poller_->wake();
  thread_.join();
}

}  // namespace tw
