// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/completion_queue.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "transport/verbs/library.h"

namespace tw::verbs {

// What the poller holds on to: it knows the queue for as long as that lives.
class CompletionQueue::Lookout final : public Watcher {
 public:
  explicit Lookout(CompletionQueue& queue) : queue_(&queue) {}

  void forget() {
    const MutexLock lock(mutex_);
    queue_ = nullptr;
  }

 private:
  void on_event(uint32_t, uint32_t) override {
    if (Ref<CompletionQueue> queue = find()) queue->on_channel();
  }
  void on_timer() override {
    if (Ref<CompletionQueue> queue = find()) queue->on_tick();
  }
  Ref<CompletionQueue> find() {
    const MutexLock lock(mutex_);
    if (!queue_ || !queue_->try_retain()) return nullptr;
    return Ref<CompletionQueue>::adopt(queue_);
  }

  Mutex mutex_;  // guards queue_
  CompletionQueue* queue_ TW_GUARDED_BY(mutex_);
};

Result<Ref<CompletionQueue>> CompletionQueue::make(Ref<Domain> domain, size_t size,
                                                   Poller& poller) {
  const Library& library = domain->library();
  const auto failed = [&](const char* what) {
    return errno_status(Code::kResourceExhausted,
                        text({"cannot create ", what, " on ", domain->device().name}), errno);
  };
  ibv_comp_channel* const channel = library.create_comp_channel(domain->context());
  if (!channel) return failed("a completion channel");
  fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  ibv_cq* const handle =
      library.create_cq(domain->context(), static_cast<int>(size), nullptr, channel, 0);
  if (!handle) {
    Status status = failed("a completion queue");
    library.destroy_comp_channel(channel);
    return status;
  }
  auto queue = Ref<CompletionQueue>::adopt(
      new CompletionQueue(std::move(domain), channel, handle, size, poller));
  auto watch = poller.watch(channel->fd, EPOLLONESHOT, queue->lookout_);
  if (!watch) return watch.status();
  const MutexLock lock(queue->mutex_);
  queue->watch_ = *watch;
  queue->request_notification();
  queue->watch_channel(true);
  return queue;
}

CompletionQueue::CompletionQueue(Ref<Domain> domain, ibv_comp_channel* channel, ibv_cq* queue,
                                 size_t size, Poller& poller)
    : domain_(std::move(domain)),
      channel_(channel),
      queue_(queue),
      size_(size),
      poller_(poller),
      lookout_(make_ref<Lookout>(*this)) {}

CompletionQueue::~CompletionQueue() {
  lookout_->forget();
  if (watch_ != 0) poller_.unwatch(watch_, channel_->fd);
  const Library& library = domain_->library();
  // An event that was never fetched is never waited for either.
  library.destroy_cq(queue_);
  library.destroy_comp_channel(channel_);
}

void CompletionQueue::dispose() noexcept {
  if (home_.here()) delete this;
}

int CompletionQueue::channel() const { return channel_->fd; }

void CompletionQueue::attach(uint32_t queue_pair, CompletionSink& sink, uint32_t tag) {
  const MutexLock lock(mutex_);
  recipients_[queue_pair] = {&sink, tag};
}

void CompletionQueue::detach(uint32_t queue_pair, const CompletionSink& own) {
  const MutexLock lock(mutex_);
  const auto it = recipients_.find(queue_pair);
  if (it == recipients_.end() || it->second.sink != &own) return;
  recipients_.erase(it);
  if (&own != on_duty_) return;
  on_duty_ = nullptr;
  request_notification();
  dispatch(nullptr);
  watch_channel(true);
}

void CompletionQueue::dispatch(const CompletionSink* who) {
  // To the end: what lay there before a notification was asked for raises no event.
  constexpr int kBatch = 32;
  ++polls_;
  ibv_wc completions[kBatch];
  int count;
  do {
    count = ibv_poll_cq(queue_, kBatch, completions);
    for (int at = 0; at < count; ++at) {
      const auto it = recipients_.find(completions[at].qp_num);
      // Of a queue pair that was destroyed, or is not joined yet.
      if (it == recipients_.end()) continue;
      it->second.sink->on_completion(it->second.tag, completions[at], it->second.sink == who);
    }
  } while (count == kBatch);
}

void CompletionQueue::request_notification() {
  // Fetched events are acknowledged at once: destroying a queue waits for each of them.
  ibv_cq* queue = nullptr;
  void* tag = nullptr;
  unsigned count = 0;
  while (domain_->library().get_cq_event(channel_, &queue, &tag) == 0) ++count;
  if (count != 0) {
    domain_->library().ack_cq_events(queue_, count);
    notified_ = false;
  }
  if (notified_) return;
  notified_ = ibv_req_notify_cq(queue_, 0) == 0;
}

void CompletionQueue::watch_channel(bool on) {
  if (watch_ != 0) poller_.rearm(watch_, channel_->fd, on ? EPOLLIN | EPOLLONESHOT : EPOLLONESHOT);
}

// A driver on duty may be busy with something else for a while: as long as others rely on it, the
// background looks whether it polls.
void CompletionQueue::keep_ticking() {
  if (ticking_ || recipients_.size() < 2) return;
  ticking_ = true;
  poller_.add_timer(now() + kTick, lookout_);
}

void CompletionQueue::poll(const CompletionSink* who) {
  const MutexLock lock(mutex_);
  dispatch(who);
}

void CompletionQueue::begin(const CompletionSink& who) {
  const MutexLock lock(mutex_);
  if (on_duty_) return;
  on_duty_ = &who;
  asleep_ = false;
  watch_channel(false);
  keep_ticking();
}

bool CompletionQueue::prepare_sleep(const CompletionSink& who) {
  const MutexLock lock(mutex_);
  if (!on_duty_) {
    on_duty_ = &who;
    watch_channel(false);
  }
  const bool mine = on_duty_ == &who;
  if (mine) {
    asleep_ = true;
    request_notification();
  }
  dispatch(&who);
  return mine;
}

void CompletionQueue::end_sleep(const CompletionSink& who) {
  const MutexLock lock(mutex_);
  if (on_duty_ == &who && std::exchange(asleep_, false)) keep_ticking();
}

void CompletionQueue::end(const CompletionSink& who) {
  const MutexLock lock(mutex_);
  if (on_duty_ != &who) return dispatch(nullptr);
  on_duty_ = nullptr;
  asleep_ = false;
  request_notification();
  dispatch(nullptr);
  watch_channel(true);
}

void CompletionQueue::on_channel() {
  const MutexLock lock(mutex_);
  // The event stays for the driver on duty, who may be asleep on it.
  if (on_duty_) return;
  request_notification();
  dispatch(nullptr);
  watch_channel(true);
}

void CompletionQueue::on_tick() {
  const MutexLock lock(mutex_);
  ticking_ = false;
  if (!on_duty_ || asleep_) return;
  if (polls_at_tick_ == polls_) dispatch(nullptr);
  polls_at_tick_ = polls_;
  keep_ticking();
}

// ---- the set ----

CompletionQueues::Share::~Share() {
  if (!set_) return;
  const MutexLock lock(set_->mutex_);
  queue_->reserved_ -= entries_;
  if (queue_->reserved_ == 0)
    std::erase_if(set_->queues_, [&](const auto& queue) { return queue.get() == queue_.get(); });
}

void CompletionQueues::abandon(const ibv_cq* broken) {
  const MutexLock lock(mutex_);
  std::erase_if(queues_, [&](const auto& queue) {
    if (queue->handle() != broken) return false;
    queue->abandoned_.store(true, std::memory_order_release);
    return true;
  });
}

Result<CompletionQueues::Share> CompletionQueues::reserve(const Ref<Domain>& domain,
                                                          size_t entries) {
  const MutexLock lock(mutex_);
  CompletionQueue* best = nullptr;
  size_t count = 0;
  for (const auto& queue : queues_) {
    if (queue->domain_.get() != domain.get()) continue;
    ++count;
    if (queue->reserved_ + entries > queue->size_) continue;
    if (!best || queue->reserved_ < best->reserved_) best = queue.get();
  }
  if (!best || count < wanted_) {
    const size_t size = std::min<size_t>(kEntries, domain->device().max_completions);
    if (entries > size)
      return Status{Code::kResourceExhausted,
                    text({domain->device().name, " has completion queues of ", size,
                          " entries, and one queue pair needs ", entries,
                          ": set TENSORWIRE_VERBS_QUEUE_DEPTH lower"})};
    auto made = CompletionQueue::make(domain, size, poller_);
    if (!made && !best) return made.status();
    if (made) {
      best = made->get();
      queues_.push_back(std::move(*made));
    }
  }
  best->reserved_ += entries;
  return Share(this, Ref<CompletionQueue>::share(best), entries);
}

}  // namespace tw::verbs
