// SPDX-License-Identifier: Apache-2.0
// epoll and timers for whatever nobody is driving at the moment: idle links, listeners, deaths,
// deadlines.
//
// Exactly one thread at a time may be in poll(); the other members may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"

namespace tw {

// Has timers, which end in the thread in poll(). It is kept alive while a call is under way.
class Timed : public RefCounted {
 public:
  virtual void on_timer() {}
};

// Is told about events, too.
class Watcher : public Timed {
 public:
  // `tag` is what watch() was given; `events` are epoll's.
  virtual void on_event(uint32_t tag, uint32_t events) = 0;
};

class Poller {
 public:
  static Result<std::unique_ptr<Poller>> create();
  ~Poller();

  // Readable while poll() would find an event; timers do not show.
  int fd() const { return epoll_.get(); }

  // Names one watched descriptor; never reused.
  using Watch = uint64_t;

  // Starts watching; the descriptor must stay open until unwatch().
  Result<Watch> watch(int fd, uint32_t events, Ref<Watcher> watcher, uint32_t tag = 0);
  // Changes what is watched for (EPOLLONESHOT re-arms). The descriptor must be the watched one.
  void rearm(Watch watch, int fd, uint32_t events);
  // Afterwards no new on_event starts for it; one under way may still finish.
  void unwatch(Watch watch, int fd);

  using Timer = std::pair<Nanos, uint64_t>;
  Timer add_timer(Nanos deadline, Ref<Timed> timed);
  // The same for whoever watches nothing else.
  Timer add_timer(Nanos deadline, std::function<void()> what);
  void cancel_timer(Timer timer);

  // Handles events until one batch is done, the deadline passes, wake() is called (true) or a
  // signal arrives (false).
  bool poll(Nanos deadline);
  // For one who polls only while fd() is readable: when its timers want the next poll(), which may
  // be kForever. One that is added before that makes fd() readable.
  Nanos idle_until();
  // Makes the present or the next poll() return.
  void wake();

 private:
  class Appointment;
  Poller() = default;
  void run_timers();

  struct Entry {
    Ref<Watcher> watcher;
    uint32_t tag;
  };

  Fd epoll_;
  Fd wake_;
  Mutex mutex_;  // guards what follows; never held while a watcher runs
  std::unordered_map<Watch, Entry> entries_ TW_GUARDED_BY(mutex_);
  std::map<Timer, Ref<Timed>> timers_ TW_GUARDED_BY(mutex_);
  uint64_t next_id_ TW_GUARDED_BY(mutex_) = 1;
  Nanos sleeping_until_ TW_GUARDED_BY(mutex_) = 0;
};

}  // namespace tw
