// SPDX-License-Identifier: Apache-2.0
#include "sender.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace tensorwire::mpi {

Sender::Sender(const tw_table& core, tw_group* group, int64_t timeout_ns)
    : core_(core), group_(group), timeout_ns_(timeout_ns) {}

Sender::~Sender() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Sender::push(std::shared_ptr<Message> message) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    sigset_t all, before;  // signals are the application's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_setname_np(thread_.native_handle(), "tw-mpi-send");
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  messages_.push_back(std::move(message));
  changed_.notify_all();
}

void Sender::wait(const Message& message) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return message.sent; });
}

void Sender::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return messages_.empty(); });
}

bool Sender::busy() {
  const std::lock_guard lock(mutex_);
  return !messages_.empty();
}

void Sender::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !messages_.empty() || closed_; });
    if (messages_.empty()) return;
    Message& message = *messages_.front();
    lock.unlock();
    const tw_wait wait{timeout_ns_, nullptr, nullptr};
    tw_status status{};
    const int code = core_.group_send(group_, message.to, message.tag, message.data, message.size,
                                      &wait, &status);
    lock.lock();
    message.code = code;
    message.status = status;
    message.sent = true;
    messages_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace tensorwire::mpi
