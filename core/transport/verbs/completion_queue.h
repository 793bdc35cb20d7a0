// SPDX-License-Identifier: Apache-2.0
// Completion queues, which the links of a device share, and who looks after each.
//
// Whoever polls a queue hands every completion to the link that it belongs to. So that nothing
// lies there unseen, one link or the background is always on duty:
//   a link    from the moment its driver begins until it lets go of the baton. It polls; before it
//             sleeps it asks for a notification, polls once more, and sleeps on the channel.
//   nobody    the background watches the channel: it asks for a notification and polls whenever
//             one has come.
// Asking first and polling afterwards leaves no gap: a completion is either found by that poll, or
// it raises an event. A driver that is not on duty sleeps on its own bell, which whoever polls
// rings.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "engine/poller.h"
#include "transport/verbs/domain.h"

struct ibv_comp_channel;
struct ibv_cq;
struct ibv_wc;

namespace tw::verbs {

// Who owns queue pairs. Called under the queue's lock, by any thread that polls.
class CompletionSink {
 public:
  // `tag`: what attach() was given. `own`: this thread is this sink's driver, which needs no bell.
  virtual void on_completion(uint32_t tag, const ibv_wc& completion, bool own) = 0;

 protected:
  ~CompletionSink() = default;
};

// Thread-safe.
class CompletionQueue final : public Listed<> {
 public:
  ibv_cq* handle() const { return queue_; }
  int channel() const;
  // It has overrun, and takes no more queue pairs.
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }

  void attach(uint32_t queue_pair, CompletionSink& sink, uint32_t tag);
  // Afterwards the sink is not called for this queue pair any more. One of the same number that
  // another sink has attached meanwhile stays.
  void detach(uint32_t queue_pair, const CompletionSink& own);

  // Hands out what there is. `who`: whose driver this thread is, or null.
  void poll(const CompletionSink* who);

  // A driver begins. It is on duty unless another one is.
  void begin(const CompletionSink& who);
  // It is about to sleep: true when the channel has to wake it, because it is on duty. Polls.
  bool prepare_sleep(const CompletionSink& who);
  // It has slept: as long as it is busy with something else, the background looks after the others.
  void end_sleep(const CompletionSink& who);
  // It lets go of the baton: the background is on duty if this one was. Polls.
  void end(const CompletionSink& who);

 private:
  friend class CompletionQueues;
  class Lookout;
  static constexpr Nanos kTick = 5 * kMillisecond;

  CompletionQueue(Ref<Domain> domain, ibv_comp_channel* channel, ibv_cq* queue, size_t size,
                  Poller& poller);
  static Result<Ref<CompletionQueue>> make(Ref<Domain> domain, size_t size, Poller& poller);
  ~CompletionQueue() override;
  void dispose() noexcept override;

  // All with mutex_ held:
  void dispatch(const CompletionSink* who) TW_REQUIRES(mutex_);
  void request_notification() TW_REQUIRES(mutex_);
  void watch_channel(bool on) TW_REQUIRES(mutex_);
  void keep_ticking() TW_REQUIRES(mutex_);
  void on_channel();  // these two by the background
  void on_tick();

  const Birthplace home_;
  const Ref<Domain> domain_;
  ibv_comp_channel* const channel_;
  ibv_cq* const queue_;
  const size_t size_;
  Poller& poller_;
  Ref<Lookout> lookout_;
  Poller::Watch watch_ = 0;

  Mutex mutex_;  // guards what follows, and polling; taken before a sink's lock
  struct Recipient {
    CompletionSink* sink;
    uint32_t tag;
  };
  // By number of the queue pair.
  std::unordered_map<uint32_t, Recipient> recipients_ TW_GUARDED_BY(mutex_);
  const CompletionSink* on_duty_ TW_GUARDED_BY(mutex_) = nullptr;  // null: the background
  bool asleep_ TW_GUARDED_BY(mutex_) = false;    // who is on duty sleeps on the channel
  bool notified_ TW_GUARDED_BY(mutex_) = false;  // a notification was asked for and has not come
  bool ticking_ TW_GUARDED_BY(mutex_) = false;   // a timer runs
  uint64_t polls_ TW_GUARDED_BY(mutex_) = 0;
  uint64_t polls_at_tick_ TW_GUARDED_BY(mutex_) = 0;

  std::atomic<bool> abandoned_{false};
  size_t reserved_ = 0;  // entries that its queue pairs may need; the set's mutex
};

// The completion queues of a process. Thread-safe.
class CompletionQueues {
 public:
  // `poller`: of the background; it must outlive the queues.
  CompletionQueues(Poller& poller, uint32_t per_device) : poller_(poller), wanted_(per_device) {}

  // A place for `entries` completions in one of the device's queues; goes back with the object.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : set_(std::exchange(other.set_, nullptr)),
          queue_(std::move(other.queue_)),
          entries_(other.entries_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(set_, other.set_);
      std::swap(queue_, other.queue_);
      std::swap(entries_, other.entries_);
      return *this;
    }
    ~Share();
    CompletionQueue& queue() const { return *queue_; }

   private:
    friend class CompletionQueues;
    Share(CompletionQueues* set, Ref<CompletionQueue> queue, size_t entries)
        : set_(set), queue_(std::move(queue)), entries_(entries) {}
    CompletionQueues* set_ = nullptr;
    Ref<CompletionQueue> queue_;
    size_t entries_ = 0;
  };

  // Of the emptiest; more than `per_device` are made only when all of those are full.
  // RESOURCE_EXHAUSTED.
  Result<Share> reserve(const Ref<Domain>& domain, size_t entries);
  // It has overrun: its queue pairs are lost, and no more come to it.
  void abandon(const ibv_cq* broken);

 private:
  static constexpr size_t kEntries = 8192;

  Poller& poller_;
  const uint32_t wanted_;
  Mutex mutex_;  // guards what follows
  std::vector<Ref<CompletionQueue>> queues_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::verbs
