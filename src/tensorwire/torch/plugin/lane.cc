// SPDX-License-Identifier: Apache-2.0
#include "lane.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace tensorwire {

// The thread shares it, because the lane may end on the thread itself.
struct Lane::State {
  const pid_t home = getpid();
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool running = false;  // an operation, by whomever
  bool closed = false;
  std::thread thread;
};

namespace {
// For so long a thread waits for the next operation: messages have a lane for each tag.
constexpr std::chrono::milliseconds kIdle{250};
thread_local const void* mine = nullptr;  // the state of the lane of which this is the thread
}  // namespace

Lane::Lane() : state_(std::make_shared<State>()) {}

Lane::~Lane() {
  close();
  join();
}

bool Lane::begin() {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed || state_->running || !state_->jobs.empty()) return false;
  state_->running = true;
  return true;
}

void Lane::end() {
  const std::lock_guard lock(state_->mutex);
  state_->running = false;
  if (!state_->jobs.empty() || state_->closed) state_->changed.notify_all();
}

bool Lane::push(Job job) {
  std::unique_lock lock(state_->mutex);
  if (state_->closed) return false;
  if (mine == state_.get()) {
    lock.unlock();
    job();
    return true;
  }
  if (!state_->thread.joinable()) {
    sigset_t all, before;  // signals are the application's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      state_->thread = std::thread([state = state_] { run(state); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_setname_np(state_->thread.native_handle(), "tw-torch");
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  state_->jobs.push_back(std::move(job));
  state_->changed.notify_all();
  return true;
}

bool Lane::close() {
  if (state_->home != getpid()) return true;
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
  return !state_->running && state_->jobs.empty();
}

void Lane::join() {
  std::thread thread;
  if (state_->home == getpid()) {
    const std::lock_guard lock(state_->mutex);
    thread = std::move(state_->thread);
  } else {
    // The lock may be held for ever by a thread that the child lacks.
    thread = std::move(state_->thread);
  }
  if (!thread.joinable()) return;
  if (state_->home != getpid() || thread.get_id() == std::this_thread::get_id())
    thread.detach();
  else
    thread.join();
}

void Lane::run(const std::shared_ptr<State>& state) {
  mine = state.get();
  std::unique_lock lock(state->mutex);
  for (;;) {
    const auto due = [&] { return !state->running && (!state->jobs.empty() || state->closed); };
    if (!state->changed.wait_for(lock, kIdle, due)) {
      if (state->running || !state->jobs.empty()) continue;
      state->thread.detach();  // the next operation starts another
      return;
    }
    if (state->jobs.empty()) return;
    Job job = std::move(state->jobs.front());
    state->jobs.pop_front();
    state->running = true;
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes without the lock
    lock.lock();
    state->running = false;
  }
}

}  // namespace tensorwire
