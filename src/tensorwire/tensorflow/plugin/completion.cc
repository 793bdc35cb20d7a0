// SPDX-License-Identifier: Apache-2.0
#include "completion.h"

#include <new>
#include <thread>

#include "thread.h"

namespace tensorwire {
namespace {

// One that blocks leaves the others.
constexpr int kThreads = 4;

// Ends nobody's call: what run_soon() was given, as a completion.
class Task final : public Completion {
 public:
  explicit Task(std::function<void()> body) : body_(std::move(body)) {}
  void call_ended() override {
    body_();
    delete this;
  }

 private:
  const std::function<void()> body_;
};

class Threads {
 public:
  static Threads& get() {
    static Threads* const threads = new Threads;
    return *threads;
  }
  tw_events* queue() const { return queue_; }

 private:
  Threads() : queue_(core().events_create()) {
    if (!queue_) throw std::bad_alloc();
    int started = 0;
    while (started < kThreads && start_detached("tensorwire-done", [this] { run(); })) ++started;
    if (started == 0) throw std::bad_alloc();
  }

  void run() const {
    for (;;) {
      uint64_t token = 0;
      int closed = 0;
      if (core().events_wait(queue_, nullptr, &token, 1, &closed) != 0)
        reinterpret_cast<Completion*>(token)->call_ended();
    }
  }

  tw_events* const queue_;
};

}  // namespace

void when_ended(tw_client_call* call, Completion* completion) {
  if (core().call_notify(call, TW_ON_END, Threads::get().queue(),
                         reinterpret_cast<uint64_t>(completion)))
    return;
  core().call_cancel(call, TW_CODE_RESOURCE_EXHAUSTED, "this process has no memory left for it");
  completion->call_ended();
}

void run_soon(std::function<void()> body) {
  const auto token =
      reinterpret_cast<uint64_t>(static_cast<Completion*>(new Task(std::move(body))));
  // Without memory, until the threads have made room: whoever asks may hold locks that the task
  // needs, so that it cannot run here.
  while (!core().events_push(Threads::get().queue(), token)) std::this_thread::yield();
}

}  // namespace tensorwire
