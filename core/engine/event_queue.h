// SPDX-License-Identifier: Apache-2.0
// Where what happens to calls, accesses and receives is announced to the layer above: to threads
// that wait here, or to an event loop that watches the queue's descriptor.
#pragma once

#include <cstddef>
#include <forward_list>
#include <span>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "engine/event.h"
#include "engine/waiting.h"

namespace tw {

class EventQueue final : public RefCounted {
 public:
  EventQueue() { tokens_.reserve(kRoom); }

  // Readable while there are tokens, and once the queue is closed. It is the queue's, made when it
  // is first asked for. RESOURCE_EXHAUSTED.
  Result<int> descriptor();

  // std::bad_alloc: the token is not there.
  void push(uint64_t token) {
    {
      const MutexLock lock(mutex_);
      make_room();
      put(token);
    }
    event_.notify(1);
  }

  void close() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      signal();
    }
    event_.notify();
  }

  // Waits for at least one token and takes `count` of them, as many as `room` holds; after close()
  // the remaining ones come first.
  Waited take(std::span<uint64_t> room, size_t& count, Nanos deadline);

 private:
  friend class Notice;
  static constexpr size_t kRoom = 64;

  // For one token besides those there and those that are promised.
  void make_room() TW_REQUIRES(mutex_);
  void put(uint64_t token) TW_REQUIRES(mutex_) {
    tokens_.push_back(token);
    signal();
  }
  void signal() TW_REQUIRES(mutex_) {
    if (descriptor_ && !signalled_) set_signal();
  }
  void set_signal() TW_REQUIRES(mutex_);
  void clear_signal() TW_REQUIRES(mutex_);

  Event event_;
  Mutex mutex_;  // guards what follows; no other lock is taken inside
  std::vector<uint64_t> tokens_ TW_GUARDED_BY(mutex_);
  size_t promised_ TW_GUARDED_BY(mutex_) = 0;
  bool closed_ TW_GUARDED_BY(mutex_) = false;
  Fd descriptor_ TW_GUARDED_BY(mutex_);
  bool signalled_ TW_GUARDED_BY(mutex_) = false;  // the descriptor is readable
};

// Who is told of something that is yet to happen: a token that goes into a queue then. Empty:
// nobody.
class Notice {
 public:
  Notice() = default;
  // Has room made for the token. std::bad_alloc.
  Notice(Ref<EventQueue> queue, uint64_t token) : queue_(std::move(queue)), token_(token) {
    const MutexLock lock(queue_->mutex_);
    queue_->make_room();
    ++queue_->promised_;
  }
  Notice(Notice&&) noexcept = default;
  Notice& operator=(Notice&& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(token_, other.token_);
    return *this;
  }
  ~Notice() {
    if (!queue_) return;
    const MutexLock lock(queue_->mutex_);
    --queue_->promised_;
  }
  // Once. Takes no memory.
  void tell() {
    const Ref<EventQueue> queue = std::move(queue_);
    if (!queue) return;
    {
      const MutexLock lock(queue->mutex_);
      --queue->promised_;
      queue->put(token_);
    }
    queue->event_.notify(1);
  }

 private:
  Ref<EventQueue> queue_;  // null: nobody, or told
  uint64_t token_ = 0;
};

// Those who wait for the same thing.
class Notices {
 public:
  Notices() = default;
  Notices(Ref<EventQueue> queue, uint64_t token) { list_.emplace_front(std::move(queue), token); }
  void add(Notices&& more) { list_.splice_after(list_.before_begin(), more.list_); }
  void swap(Notices& other) { list_.swap(other.list_); }
  // With no lock held that guards them.
  void tell() {
    for (Notice& notice : list_) notice.tell();
    list_.clear();
  }

 private:
  std::forward_list<Notice> list_;
};

}  // namespace tw
