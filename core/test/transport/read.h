// SPDX-License-Identifier: Apache-2.0
// A transport of kind kRead without hardware: the pipes and announcements of shared memory, and a
// thread that plays the device. It fetches by copying, ends fetches in any order, takes few at a
// time, and can be held up or made to fail by a test.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "transport/transport.h"

namespace tw::test {

class ReadTransport;

// What both ends of a pair do their fetches by.
class ReadDevice final : public RefCounted {
 public:
  explicit ReadDevice(size_t parallel = 3) : parallel_(parallel), thread_([this] { run(); }) {}
  ~ReadDevice() override {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // ---- for tests ----
  void hold_up(bool held) {
    {
      std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }
  // The next fetch ends like this.
  void fail_next(Status why) {
    std::lock_guard lock(mutex_);
    failure_ = std::move(why);
  }
  // The next fetch does not begin.
  void refuse_next(Status why) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(why);
  }
  void refuse_to_share(Status why) {
    std::lock_guard lock(mutex_);
    unshareable_ = std::move(why);
  }
  Status unshareable() {
    std::lock_guard lock(mutex_);
    return unshareable_;
  }
  // Called in revoke(), before the device is stopped.
  void on_revoke(std::function<void()> look) {
    std::lock_guard lock(mutex_);
    look_ = std::move(look);
  }
  size_t started() const { return count(started_); }
  size_t under_way() const {
    std::lock_guard lock(mutex_);
    return jobs_.size() + (running_ ? 1 : 0);
  }
  size_t most_under_way() const { return count(most_); }
  size_t revocations() const { return count(revocations_); }

  // ---- for the transports ----
  Result<bool> take(ReadTransport& end, uint64_t id, Located from, std::byte* to);
  void revoke();
  // Afterwards nothing is done for this end any more.
  void forget(const ReadTransport& end) {
    std::unique_lock lock(mutex_);
    std::erase_if(jobs_, [&](const Job& job) { return job.end == &end; });
    changed_.wait(lock, [&] { return running_ != &end; });
  }

 private:
  struct Job {
    ReadTransport* end;
    uint64_t id;
    Located from;
    std::byte* to;
    Status status;
  };
  size_t count(const size_t& figure) const {
    std::lock_guard lock(mutex_);
    return figure;
  }
  void run();

  const size_t parallel_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  const ReadTransport* running_ = nullptr;
  bool stopped_ = false, held_ = false, revoked_ = false;
  Status failure_, refusal_, unshareable_;
  std::function<void()> look_;
  size_t started_ = 0, most_ = 0, revocations_ = 0;
  std::mt19937 random_{7};
  std::thread thread_;  // last: it uses all of the above
};

class ReadTransport final : public Transport {
 public:
  ReadTransport(std::unique_ptr<Transport> pipes, Ref<ReadDevice> device)
      : pipes_(std::move(pipes)),
        device_(std::move(device)),
        bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        profile_{"read",
                 Bulk::kRead,
                 pipes_->profile().coalesce_bytes,
                 pipes_->profile().eager_bytes,
                 pipes_->profile().chunk_bytes,
                 4} {}
  ~ReadTransport() override {
    unwatch();
    device_->forget(*this);
  }

  const Profile& profile() const override { return profile_; }
  Result<size_t> send(std::span<const iovec> data) override { return pipes_->send(data); }
  Result<size_t> receive(std::span<const iovec> room) override { return pipes_->receive(room); }
  bool readable() override { return any_done() || pipes_->readable(); }
  Wake sleep(bool want_send, Nanos deadline) override {
    // The device interrupts after it has ended a fetch.
    return any_done() ? Wake::kReady : pipes_->sleep(want_send, deadline);
  }
  void interrupt() override { pipes_->interrupt(); }

  Status watch(Poller& poller, Ref<Watcher> watcher) override {
    if (Status status = pipes_->watch(poller, watcher); !status.ok()) return status;
    std::lock_guard lock(mutex_);
    auto watch = poller.watch(bell_.get(), EPOLLIN, std::move(watcher), kBell);
    if (!watch) return watch.status();
    poller_ = &poller;
    watch_ = *watch;
    return {};
  }
  void unwatch() override {
    pipes_->unwatch();
    std::lock_guard lock(mutex_);
    if (poller_) std::exchange(poller_, nullptr)->unwatch(watch_, bell_.get());
  }
  void arm(bool want_send) override {
    pipes_->arm(want_send);
    if (any_done()) ring();
  }
  void disarm() override { pipes_->disarm(); }
  Meaning meaning(uint32_t tag, uint32_t events) override {
    if (tag != kBell) return pipes_->meaning(tag, events);
    uint64_t value;
    [[maybe_unused]] const ssize_t n = ::read(bell_.get(), &value, sizeof value);
    return Meaning::kActivity;
  }
  void peer_gone(std::string why) override { pipes_->peer_gone(std::move(why)); }
  void hang_up() override { pipes_->hang_up(); }

  Status share(Slab& slab) override {
    if (Status status = device_->unshareable(); !status.ok()) return status;
    return pipes_->share(slab);
  }
  void slabs_dropped() override { pipes_->slabs_dropped(); }
  Result<bool> fetch(uint64_t id, const RegionRef& from, std::byte* to) override {
    auto located = pipes_->locate(from);
    if (!located) return located.status();
    return device_->take(*this, id, std::move(*located), to);
  }
  size_t completed(std::span<Completion> out) override {
    std::lock_guard lock(mutex_);
    size_t n = 0;
    for (; n < out.size() && !done_.empty(); ++n) {
      out[n] = std::move(done_.front());
      done_.pop_front();
    }
    return n;
  }
  void revoke() override { device_->revoke(); }
  void set_trace(Trace& trace) override { pipes_->set_trace(trace); }

  // By the device.
  void ended(Completion completion) {
    {
      std::lock_guard lock(mutex_);
      done_.push_back(std::move(completion));
    }
    ring();
    pipes_->interrupt();
  }

 private:
  static constexpr uint32_t kBell = 50;

  bool any_done() {
    std::lock_guard lock(mutex_);
    return !done_.empty();
  }
  void ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(bell_.get(), &one, sizeof one);
  }

  const std::unique_ptr<Transport> pipes_;
  const Ref<ReadDevice> device_;
  const Fd bell_;
  const Profile profile_;
  std::mutex mutex_;  // guards what follows
  std::deque<Completion> done_;
  Poller* poller_ = nullptr;
  Poller::Watch watch_ = 0;
};

inline Result<bool> ReadDevice::take(ReadTransport& end, uint64_t id, Located from, std::byte* to) {
  {
    std::lock_guard lock(mutex_);
    if (revoked_) return Status{Code::kUnavailable, "the device was stopped"};
    if (!refusal_.ok()) return std::exchange(refusal_, {});
    const auto mine =
        std::count_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.end == &end; });
    const size_t busy = static_cast<size_t>(mine) + (running_ == &end ? 1 : 0);
    if (busy >= parallel_) return false;
    jobs_.push_back({&end, id, std::move(from), to, std::exchange(failure_, {})});
    ++started_;
    most_ = std::max(most_, busy + 1);
  }
  changed_.notify_all();
  return true;
}

inline void ReadDevice::revoke() {
  std::function<void()> look;
  {
    std::lock_guard lock(mutex_);
    ++revocations_;
    look = look_;
  }
  if (look) look();
  std::unique_lock lock(mutex_);
  revoked_ = true;
  changed_.wait(lock, [&] { return running_ == nullptr; });
  std::deque<Job> broken;
  broken.swap(jobs_);
  // Its own end is dead and asks no more; the other one hears of it.
  for (Job& job : broken) job.end->ended({job.id, {Code::kUnavailable, "the device was stopped"}});
}

inline void ReadDevice::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || (!held_ && !revoked_ && !jobs_.empty()); });
    if (stopped_) return;
    const auto at = jobs_.begin() + static_cast<std::ptrdiff_t>(random_() % jobs_.size());
    Job job = std::move(*at);
    jobs_.erase(at);
    running_ = job.end;
    lock.unlock();
    if (job.status.ok()) std::memcpy(job.to, job.from.bytes.data(), job.from.bytes.size());
    job.end->ended({job.id, std::move(job.status)});
    job.from = {};
    lock.lock();
    running_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace tw::test
