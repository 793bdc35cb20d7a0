// SPDX-License-Identifier: Apache-2.0
#include "engine/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <vector>

#include "base/shortage.h"

namespace tw {
namespace {

// epoll_wait with a limit in nanoseconds where the kernel has it (5.11) and a sandbox does not
// refuse what it does not know, else in milliseconds, rounded up.
int wait(int epoll, epoll_event* events, int room, Nanos deadline) {
  const timespec limit = until(deadline);
  static std::atomic<bool> fine{true};
  if (fine.load(std::memory_order_relaxed)) {
    const long count = syscall(SYS_epoll_pwait2, epoll, events, room,
                               deadline == kForever ? nullptr : &limit, nullptr, 0);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(count);
    fine.store(false, std::memory_order_relaxed);
  }
  int timeout = -1;
  if (deadline != kForever)
    timeout = static_cast<int>(std::min<time_t>(limit.tv_sec, 1 << 20) * 1000 +
                               (limit.tv_nsec + 999'999) / 1'000'000);
  return epoll_wait(epoll, events, room, timeout);
}

}  // namespace

Result<std::unique_ptr<Poller>> Poller::create() {
  std::unique_ptr<Poller> poller(new Poller);
  poller->epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  poller->wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poller->epoll_ || !poller->wake_)
    return errno_status(Code::kResourceExhausted, "cannot create an epoll and an eventfd", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(poller->epoll_.get(), EPOLL_CTL_ADD, poller->wake_.get(), &event) != 0)
    return errno_status(Code::kResourceExhausted, "epoll_ctl", errno);
  return poller;
}

Poller::~Poller() = default;

Result<Poller::Watch> Poller::watch(int fd, uint32_t events, Ref<Watcher> watcher, uint32_t tag) {
  const MutexLock lock(mutex_);
  const Watch id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  entries_.emplace(id, Entry{std::move(watcher), tag});
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    entries_.erase(id);
    return errno_status(Code::kResourceExhausted, "cannot watch a descriptor with epoll", error);
  }
  return id;
}

void Poller::rearm(Watch watch, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::unwatch(Watch watch, int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  Ref<Watcher> last;  // released outside the lock: its destructor may call back
  const MutexLock lock(mutex_);
  if (auto it = entries_.find(watch); it != entries_.end()) {
    last = std::move(it->second.watcher);
    entries_.erase(it);
  }
}

class Poller::Appointment final : public Timed {
 public:
  explicit Appointment(std::function<void()> what) : what_(std::move(what)) {}

 private:
  void on_timer() override { what_(); }

  const std::function<void()> what_;
};

Poller::Timer Poller::add_timer(Nanos deadline, std::function<void()> what) {
  return add_timer(deadline, make_ref<Appointment>(std::move(what)));
}

Poller::Timer Poller::add_timer(Nanos deadline, Ref<Timed> timed) {
  const MutexLock lock(mutex_);
  const Timer timer{deadline, next_id_++};
  timers_.emplace(timer, std::move(timed));
  if (deadline < sleeping_until_) wake();
  return timer;
}

void Poller::cancel_timer(Timer timer) {
  Ref<Timed> last;
  const MutexLock lock(mutex_);
  if (auto it = timers_.find(timer); it != timers_.end()) {
    last = std::move(it->second);
    timers_.erase(it);
  }
}

void Poller::run_timers() {
  for (;;) {
    Ref<Timed> due;
    {
      const MutexLock lock(mutex_);
      if (timers_.empty() || timers_.begin()->first.first > now()) return;
      due = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    try {
      due->on_timer();
    } catch (const std::bad_alloc&) {
      const Shortage shortage;
    }
  }
}

bool Poller::poll(Nanos deadline) {
  epoll_event events[64];
  Nanos limit = deadline;
  {
    const MutexLock lock(mutex_);
    if (!timers_.empty() && timers_.begin()->first.first < limit)
      limit = timers_.begin()->first.first;
    sleeping_until_ = limit;
  }
  const int count = wait(epoll_.get(), events, 64, limit);
  const int error = errno;
  {
    const MutexLock lock(mutex_);
    sleeping_until_ = 0;
  }
  bool signal = count < 0 && error == EINTR;
  for (int i = 0; i < count; ++i) {
    const Watch id = events[i].data.u64;  // copied: epoll_event is packed
    if (id == 0) {
      uint64_t value;
      [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &value, sizeof value);
      continue;
    }
    Entry entry;
    {
      const MutexLock lock(mutex_);
      auto it = entries_.find(id);
      if (it == entries_.end()) continue;
      entry = it->second;
    }
    // What a watcher cannot do for want of memory is its own loss, and no other's.
    try {
      entry.watcher->on_event(entry.tag, events[i].events);
    } catch (const std::bad_alloc&) {
      const Shortage shortage;
    }
  }
  run_timers();
  return !signal;
}

Nanos Poller::idle_until() {
  const MutexLock lock(mutex_);
  sleeping_until_ = timers_.empty() ? kForever : timers_.begin()->first.first;
  return sleeping_until_;
}

void Poller::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

}  // namespace tw
