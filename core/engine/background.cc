#include "engine/background.h"

#include <pthread.h>
#include <signal.h>

namespace tw {

Result<std::unique_ptr<Background>> Background::start(const char* name) {
  std::unique_ptr<Background> background(new Background);
  auto poller = Poller::create();
  if (!poller) return poller.status();
  background->poller_ = std::move(*poller);
  // Signals belong to the threads of the user's program.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  background->thread_ = std::thread([self = background.get(), name] {
    pthread_setname_np(pthread_self(), name);
    while (!self->stop_.load(std::memory_order_acquire)) self->poller_->poll(kForever);
  });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
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
