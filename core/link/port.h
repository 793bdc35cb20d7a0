// SPDX-License-Identifier: Apache-2.0
// What rides on a link. A port has the messages of its streams, or frames of its own: the link
// carries them, drives them, and tells the port how it ends. A port lives as long as its link.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "link/counters.h"
#include "memory/posted_buffer.h"
#include "message/frame_queue.h"
#include "message/receiver.h"
#include "transport/transport.h"

namespace tw {

class Port {
 public:
  virtual ~Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // This end is about to close the link, which still carries messages; perhaps more than once. No
  // lock of the link's held, but perhaps the baton.
  virtual void on_closing(const Status&) {}
  // Once, if this end closes the link: nothing begins on it any more, and leases come home. No lock
  // of the link's held, but perhaps the baton.
  virtual void on_closed(const Status& why) = 0;
  // Baton held. Once, whether this end had closed the link or not: it carries nothing any more, and
  // no device touches memory of this process.
  virtual void on_lost(const Status& why) = 0;
  // Baton held. After on_lost() of all ports: the link is not looked after any more.
  virtual void on_gone() {}

 protected:
  Port() = default;
};

// Messages, with credit for each of their streams. Baton held, except where said. A status that is
// not ok ends the link.
class MessagePort : public Port {
 public:
  // Whose they are: see wire::kTaggedStreams.
  enum class Streams : uint8_t { kCalls, kTagged };
  static constexpr size_t kKinds = 2;
  virtual Streams streams() const = 0;
  static size_t kind_of(uint64_t stream) {
    return static_cast<size_t>((stream & wire::kTaggedStreams) != 0 ? Streams::kTagged
                                                                    : Streams::kCalls);
  }

  virtual Status on_message(Ref<Parcel> message) = 0;
  // As Receiver::Sink::on_wait().
  virtual Result<Receiver::Cost> on_wait(uint64_t stream, std::span<const std::byte> header,
                                         uint64_t payload_bytes, const Receiver::Cost& ahead) = 0;
  // As Receiver::Sink::on_given_up().
  virtual void on_given_up(const Parcel&) {}
  virtual Status on_credit(uint64_t stream, uint64_t bytes) = 0;
  // The peer has closed the link: it begins no message any more.
  virtual void on_peer_closed() {}
  // As Receiver::Sink::on_land().
  virtual Ref<PostedBuffer> on_land(const Parcel&, size_t) { return nullptr; }
  // Any thread. True while leases may wait for the next message instead of being given back at
  // once.
  virtual bool returns_later() const { return false; }
  // By the poller's thread, with no lock held: soon after Link::look_soon(), or at any other time.
  virtual void on_timer() {}
};

// Frames by which the peers let each other at their memory. The link asks due() and settle() all
// the time: they cost a load, and a call, while there is nothing to do.
class MemoryPort : public Port {
 public:
  // Baton held: operations wait for the device.
  bool due() const { return due_.load(std::memory_order_acquire); }
  virtual Status start_due() = 0;
  // Baton held: after what was received has been dealt with, sends answers, and ends what has
  // ended.
  virtual void settle() = 0;

  // Frames, baton held: see Receiver::Sink.
  virtual Status on_region(const wire::Region& region) = 0;
  virtual Status on_region_gone(uint64_t region) = 0;
  virtual Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                          std::span<const std::byte> here) = 0;
  virtual Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                        std::span<const std::byte> here) = 0;
  virtual Status on_placed(wire::FrameType type) = 0;
  // Stores what the transport brings; nobody takes the place of what is being received away
  // meanwhile.
  Result<size_t> receive(Transport& from, Receiver& receiver) {
    if (const Ref<PostedBuffer> posted = receiver.posted()) {
      const MutexLock lock(posted->stores());
      if (posted->withdrawn()) receiver.misplace();
      return store(from, receiver);
    }
    if (!receiver.placing()) return store(from, receiver);
    const MutexLock lock(place_mutex_);
    if (std::exchange(misplaced_, false)) receiver.misplace();
    return store(from, receiver);
  }

  // The device, baton held.
  virtual Status on_completion(const Completion& completion) = 0;
  virtual Status take_immediates() = 0;

  // Send lock held. Frames that take turns with the messages.
  virtual FrameQueue& out() = 0;
  // Send lock held: nothing is left to be sent, and the device has ended what it began.
  virtual bool idle() const = 0;
  // Send lock held: the device may be at work on memory of this process.
  virtual bool touches() const = 0;
  // Send lock held.
  virtual AccessCounters counters() const = 0;
  // Why a region was last not mapped. Ok: none was.
  virtual const Status& unmapped() const = 0;

 protected:
  std::atomic<bool> due_{false};

  // The place lock may be taken with the send lock held, and nothing is taken inside it.
  Mutex place_mutex_;
  // Who receives must not store any more.
  bool misplaced_ TW_GUARDED_BY(place_mutex_) = false;

 private:
  static Result<size_t> store(Transport& from, Receiver& receiver) {
    iovec room[2];
    const size_t runs = receiver.buffers(room);
    return from.receive({room, runs});
  }
};

}  // namespace tw
