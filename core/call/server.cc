// SPDX-License-Identifier: Apache-2.0
#include "call/server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <optional>

#include "base/mutex.h"
#include "base/shortage.h"

namespace tw {

// After close() nobody is in next() any more, but peers may still hold leases: the background then
// polls in its place, at events and when a timer is due, until the last link has gone.
class Server::Drain final : public Watcher {
 public:
  explicit Drain(Ref<Server> server) : server_(std::move(server)) {}

  Status begin() {
    auto background = server_->runtime_.background();
    if (!background) return background.status();
    const MutexLock lock(mutex_);
    auto watch = (*background)->watch(server_->poller_->fd(), EPOLLIN, Ref<Watcher>::share(this));
    if (!watch) return watch.status();
    background_ = *background;
    watch_ = *watch;
    server_->poller_->wake();  // to look at its timers
    return {};
  }

 private:
  void on_event(uint32_t, uint32_t) override { poll(); }
  void on_timer() override {
    {
      const MutexLock lock(mutex_);
      timer_.reset();
    }
    poll();
  }
  void poll() {
    server_->poller_->poll(0);
    const bool over = server_->deserted();
    const Nanos next = over ? kForever : server_->poller_->idle_until();
    const MutexLock lock(mutex_);
    if (timer_ && timer_->first != next) {
      background_->cancel_timer(*timer_);
      timer_.reset();
    }
    if (over)
      background_->unwatch(watch_, server_->poller_->fd());
    else if (!timer_ && next != kForever)
      timer_ = background_->add_timer(next, Ref<Watcher>::share(this));
  }

  const Ref<Server> server_;
  Mutex mutex_;  // guards what follows: the first event may come before begin() is through
  Poller* background_ TW_GUARDED_BY(mutex_) = nullptr;
  Poller::Watch watch_ TW_GUARDED_BY(mutex_) = 0;
  std::optional<Poller::Timer> timer_ TW_GUARDED_BY(mutex_);  // for the server's next one
};

Result<Ref<Server>> Server::create(std::optional<uint64_t> max_message) {
  auto runtime = Runtime::get();
  if (!runtime) return runtime.status();
  auto poller = Poller::create();
  if (!poller) return poller.status();
  return Ref<Server>::adopt(
      new Server(**runtime, std::move(*poller),
                 max_message.value_or((*runtime)->settings().max_message_bytes)));
}

Server::Server(Runtime& runtime, std::unique_ptr<Poller> poller, uint64_t max_message)
    : runtime_(runtime),
      max_message_(max_message),
      most_unread_(runtime.settings().unread_bytes),
      poller_(std::move(poller)) {
  listener_ = make_ref<meet::Listener>(
      runtime_, *poller_, [this](meet::Connected connected) { arrived(std::move(connected)); });
}

void Server::arrived(meet::Connected connected) {
  (void)take_in(std::move(connected), max_message_, Link::Role::kServer, {});
}

Result<Ref<CallPort>> Server::join(meet::Connected connected, uint64_t max_message,
                                   const Wanted& wanted) {
  return take_in(std::move(connected), max_message, Link::Role::kClient, wanted);
}

Result<Ref<CallPort>> Server::take_in(meet::Connected connected, uint64_t max_message,
                                      Link::Role role, const Wanted& wanted) {
  const auto link = make_ref<Link>(runtime_, *poller_, std::move(connected.transport),
                                   std::move(connected.peer), max_message, role, wanted);
  ServerPort& port = link->attach<ServerPort>(Ref<Server>::share(this));
  {
    const MutexLock lock(mutex_);
    if (closed_)
      return Status{Code::kUnavailable, "the server that is to serve the peer is closed"};
    ports_.emplace(&port, Ref<ServerPort>::share(&port));
  }
  // One that cannot be looked after is lost, hence forgotten.
  if (Status status = link->start(); !status.ok()) return status;
  port.ready_.store(true, std::memory_order_release);
  tell_peers_changed();
  return Ref<CallPort>::share(&port);
}

Status Server::notify_peers(Ref<EventQueue> queue, uint64_t token) {
  Notices notice(std::move(queue), token);
  const MutexLock lock(mutex_);
  if (closed_) return {Code::kUnavailable, "the server is closed"};
  peers_changed_.add(std::move(notice));
  return {};
}

void Server::tell_peers_changed() {
  Notices due;
  {
    const MutexLock lock(mutex_);
    due.swap(peers_changed_);
  }
  due.tell();
}

void Server::queue(ServerPort& port, Ref<ServerCall> call) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;  // it ends with its link
    port.queued_.push_back(std::move(call));
    port.any_queued_.store(true, std::memory_order_relaxed);
    if (port.queued_.size() == 1) turns_.splice(turns_.end(), port.no_turn_);
  }
  poller_->wake();
}

Ref<ServerCall> Server::take_locked(ServerPort& port) {
  Ref<ServerCall> call = std::move(port.queued_.front());
  port.queued_.pop_front();
  if (port.queued_.empty()) {
    port.no_turn_.splice(port.no_turn_.begin(), turns_, port.turn_);
    port.any_queued_.store(false, std::memory_order_relaxed);
  } else {
    turns_.splice(turns_.end(), turns_, port.turn_);
  }
  return call;
}

Ref<ServerCall> Server::take_queued(ServerPort& port) {
  // One that is queued meanwhile wakes somebody else.
  while (port.any_queued_.load(std::memory_order_relaxed)) {
    Ref<ServerCall> call;
    {
      const MutexLock lock(mutex_);
      if (port.queued_.empty()) return nullptr;
      call = take_locked(port);
    }
    if (!call->drop_if_over()) return call;
  }
  return nullptr;
}

Ref<ServerCall> Server::take_turn() {
  const MutexLock lock(mutex_);
  return turns_.empty() ? nullptr : take_locked(*turns_.front());
}

Waited Server::next(std::vector<Ref<ServerCall>>& calls, size_t room, Nanos deadline) {
  calls.reserve(room);
  for (;;) {
    bool behind;
    {
      const MutexLock lock(mutex_);
      // Between two batches all links are read, however many calls of some are queued.
      // A closed server's links are Drain's.
      behind = std::exchange(behind_, false) && !closed_;
      if (!behind) {
        while (calls.size() < room && !turns_.empty())
          calls.push_back(take_locked(*turns_.front()));
        behind_ = !turns_.empty();
        if (calls.empty() && closed_) break;
      }
      if (calls.empty()) ++polling_;
    }
    if (!calls.empty()) {
      std::erase_if(calls, [](const auto& call) { return call->drop_if_over(); });
      if (calls.empty()) continue;
      return Waited::kDone;
    }
    const bool signal = !poller_->poll(behind ? 0 : deadline);
    const MutexLock lock(mutex_);
    --polling_;
    if (!turns_.empty() || closed_) continue;
    if (signal) return Waited::kSignal;
    if (now() >= deadline) return Waited::kTimeout;
  }
  drain();
  return Waited::kClosed;
}

// Begins once the server is closed and nobody polls for it: two pollers would take each other's
// wake-ups.
void Server::drain() {
  {
    const MutexLock lock(mutex_);
    if (polling_ != 0 || ports_.empty() || std::exchange(drain_begun_, true)) return;
  }
  bool begun = false;
  (void)has_memory_for([&] { begun = make_ref<Drain>(Ref<Server>::share(this))->begin().ok(); });
  // Nobody would see leases come home.
  if (!begun) each_port([](ServerPort& port) { port.link().starve(); });
}

void Server::forget(ServerPort& port) {
  Ref<ServerPort> last;
  const MutexLock lock(mutex_);
  auto it = ports_.find(&port);
  if (it == ports_.end()) return;
  last = std::move(it->second);
  ports_.erase(it);
  if (closed_ && ports_.empty()) poller_->wake();  // Drain has nothing left to do
}

// The port after `last`, null at the end.
Ref<ServerPort> Server::port_after(const ServerPort* last) const {
  const MutexLock lock(mutex_);
  const auto at = ports_.upper_bound(const_cast<ServerPort*>(last));
  return at == ports_.end() ? nullptr : at->second;
}

bool Server::deserted() const {
  const MutexLock lock(mutex_);
  return ports_.empty();
}

size_t Server::active() const {
  size_t active = 0;
  each_port(
      [&](const ServerPort& port) { active += port.serving() + (port.link().backlog() != 0); });
  return active;
}

void Server::refuse() {
  if (refusing_.exchange(true)) return;
  each_port([](ServerPort& port) {
    Link& link = port.link();
    link.surely([&] { link.go_away(Code::kUnavailable, "the server is shutting down"); });
  });
}

void Server::close() {
  refuse();
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  // One by one, let go of without the lock: they may hold leases.
  for (Ref<ServerCall> call = take_turn(); call; call = take_turn()) {
  }
  listener_->close();
  each_port([](ServerPort& port) {
    Link& link = port.link();
    link.surely([&] { link.close({Code::kCancelled, "the server was closed"}); });
  });
  tell_peers_changed();
  poller_->wake();
  drain();
}

}  // namespace tw
