// SPDX-License-Identifier: Apache-2.0
// One end of a link: its queue pairs, the buffers of the byte pipe, and everything that is under
// way through them. It outlives its transport until the last SENDs have gone out.
//
// The pipe is SEND on the first queue pair. Each side has `receive_depth` buffers posted; the other
// spends a credit for every SEND, and for every write with immediate, which takes up a buffer, too.
// Credit comes back in the immediate value of any SEND, or in an empty one once half of it is owed.
// The last credit is kept for that, so that two ends that are both out of credit cannot wait for
// each other.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "base/unshared.h"
#include "memory/arena.h"
#include "memory/memfd.h"
#include "transport/transport.h"
#include "transport/verbs/completion_queue.h"
#include "transport/verbs/context.h"
#include "transport/verbs/lifecycle.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/wire.h"

namespace tw::verbs {

// Thread-safe, with a lock of its own that is taken inside a completion queue's.
class Endpoint final : public Observer, private CompletionSink {
 public:
  // With a queue pair in INIT for each entry. RESOURCE_EXHAUSTED, UNAVAILABLE.
  static Result<Ref<Endpoint>> create(Ref<Context> context, Arena& arena, Poller& background,
                                      std::span<const OpenRail> pairs);

  // What the peer has to know, without a code.
  wire::VerbsOffer describe() const;
  // Joins own[i] (an index of a queue pair, each once) with the peer's pair i, and forgets the
  // others. The peer can be reached, and reach this end, from here on.
  Status connect(std::span<const uint32_t> own, const wire::VerbsOffer& peer);
  // The connection beside the queue pairs: its end is the link's end.
  void take_over(Fd side);
  int side() const { return side_.get(); }
  int bell() const { return bell_.get(); }
  size_t pairs() const {
    const MutexLock lock(mutex_);
    return pairs_.size();
  }

  // ---- the pipe; zero means "not now", without a look at the completion queues ----
  Result<size_t> send(std::span<const iovec> data);
  size_t receive(std::span<const iovec> room);
  Status failure() const;

  // ---- memory ----
  // Tells the peer of a slab, ahead of what is sent from now on, or that it has gone.
  Status announce(Slab& slab);
  void withdraw(const Slab& slab);

  Result<bool> fetch(uint64_t id, const RegionRef& from, std::byte* to);
  Result<bool> start(const Operation& operation);
  size_t completed(std::span<Completion> out);
  size_t immediates(std::span<uint32_t> out);
  Result<RemoteKey> expose(std::byte* data, size_t size, Rights rights);
  void conceal(const RemoteKey& key);

  // ---- sleeping ----
  enum class Attention : uint8_t { kAwake, kDriver, kBackground };
  // Rings the bell once there is something to do; false: there is already.
  bool doze(Attention attention, bool want_send);
  bool dozing() const;
  void wake();
  void ring();
  // Something to receive, to hand up or to report.
  bool due() const;
  // By the driver, who then needs no bell; or by anybody else.
  void poll(bool driver);
  void begin_driving();
  void end_driving();
  // The driver is about to sleep: how many descriptors it has to watch beside the bell and the side
  // connection. Polls.
  size_t prepare_sleep(std::span<int> channels);
  void end_sleep();

  // ---- the end ----
  // Both ends stop reading and writing this process's memory. What was sent goes out first, if it
  // does so at once.
  void revoke(bool peer_lives);
  // Ends the side connection once the last SEND has reached the peer's device.
  void hang_up(bool peer_lives);
  // The transport is gone: what is left goes when that has happened.
  void leave(bool peer_lives);

  TransportFacts facts() const;
  // Where SENDs of the pipe are noted; it outlives the transport, hence is forgotten by leave().
  void set_trace(Trace& trace);

 private:
  // How long the last SENDs may take.
  static constexpr Nanos kLinger = 2 * kSecond;
  // ... ahead of a revocation. Whoever serves many links waits for it, and a peer may have stopped.
  static constexpr Nanos kLastWords = 10 * kMillisecond;
  static constexpr size_t kMaxPeerSlabs = 4096;
  static constexpr uint32_t kCells = 16;  // results of atomics under way

  struct Arrived {
    uint32_t buffer, offset, size;
  };
  struct PeerSlab {
    uint32_t generation = 0;
    uint64_t size = 0;  // 0: gone
    std::vector<wire::VerbsControl::Window> windows;
  };
  // One request of a transfer.
  struct DeviceRequest {
    Operation::Kind kind;
    std::shared_ptr<DeviceTransfer> transfer;
    size_t pair;
    std::byte* local;
    size_t length;
    RemoteKey remote;
    uint64_t operand = 0, expected = 0;
    uint32_t immediate = 0;
  };
  struct EndedTransfer {
    Completion completion;
    Ref<Registration> memory;  // let go of without the lock
  };
  struct Exposed {
    RemoteKey key;
    uint64_t bind = 0;   // the request
    Ref<Window> window;  // or, where the device has none,
    Ref<Registration> memory;
    SharedRegistration share;  // what the window is bound to, but for slabs
  };

  Endpoint(Ref<Context> context, Arena& arena, Poller& background);
  ~Endpoint() override;
  void dispose() noexcept override;

  std::byte* receive_buffer(uint32_t index) const { return memory_->data() + index * stride_; }
  std::byte* send_buffer(uint32_t index) const { return receive_buffer(depth_ + index); }
  std::byte* cell(uint32_t index) const {
    return receive_buffer(2 * depth_) + index * sizeof(uint64_t);
  }
  CompletionSink& sink() { return *this; }
  // Of a pair; it stays for as long as the transport.
  Domain& domain(size_t pair) const {
    const MutexLock lock(mutex_);
    return pairs_[pair]->domain();
  }
  Result<Ref<Registration>> local(Domain& domain, std::byte* data, size_t size, Access access);

  void on_completion(uint32_t tag, const ibv_wc& completion, bool own) override;
  void on_event(const AsyncEvent& event) override;

  // All with mutex_ held:
  bool due_locked() const TW_REQUIRES(mutex_);
  bool can_send() const TW_REQUIRES(mutex_);
  void on_received(const ibv_wc& completion) TW_REQUIRES(mutex_);
  void on_news(const wire::VerbsControl& news) TW_REQUIRES(mutex_);
  void on_posted(QueuePair& pair, const ibv_wc& completion) TW_REQUIRES(mutex_);
  void post_send(std::span<const std::byte> bytes, int32_t buffer, bool own) TW_REQUIRES(mutex_);
  void post_news() TW_REQUIRES(mutex_);
  void give_back() TW_REQUIRES(mutex_);
  void post_receive(uint32_t buffer) TW_REQUIRES(mutex_);
  void post_empty_write(QueuePair& pair, Posted::Kind kind) TW_REQUIRES(mutex_);
  bool can_post(Operation::Kind kind, size_t pair) const TW_REQUIRES(mutex_);
  void submit(DeviceRequest whole) TW_REQUIRES(mutex_);
  void post(const DeviceRequest& piece) TW_REQUIRES(mutex_);
  void post_waiting() TW_REQUIRES(mutex_);
  void end(DeviceTransfer& transfer) TW_REQUIRES(mutex_);
  void fail(Status why) TW_REQUIRES(mutex_);
  // The last SEND has gone out, or cannot any more: hanging up is done. Nothing before hang_up().
  void close_side() TW_REQUIRES(mutex_);
  void end_side() TW_REQUIRES(mutex_);
  void ring_locked() TW_REQUIRES(mutex_);
  void rouse(bool own) TW_REQUIRES(mutex_);
  size_t freest_pair() const TW_REQUIRES(mutex_);
  void look_for_room() TW_REQUIRES(mutex_);

  // Mutex held. While requests are under way, looks after them from time to time.
  void expect_progress() TW_REQUIRES(mutex_);
  void check_progress(Nanos time);
  Nanos patience() const TW_REQUIRES(mutex_);

  void flush();
  void retire();

  const Birthplace home_;
  const Ref<Context> context_;
  Arena& arena_;
  Poller& background_;
  const Fd bell_;
  UnsharedFd side_;

  uint32_t depth_ = 0;        // receive buffers, and as many to send
  uint32_t stride_ = 0;       // bytes of each
  Ref<Registration> memory_;  // of the buffers
  // Of the queue pairs, each once. A timer may come after the pairs have gone.
  std::vector<Ref<CompletionQueue>> queues_;

  mutable Mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<QueuePair>> pairs_ TW_GUARDED_BY(mutex_);
  Status failure_ TW_GUARDED_BY(mutex_);
  uint32_t credits_ TW_GUARDED_BY(mutex_) = 0;
  uint32_t peer_depth_ TW_GUARDED_BY(mutex_) = 0;
  // Receive buffers posted anew that the peer does not know of.
  uint32_t owed_ TW_GUARDED_BY(mutex_) = 0;
  uint32_t send_bytes_ TW_GUARDED_BY(mutex_) = 0;  // most of one SEND
  std::vector<uint32_t> free_buffers_ TW_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_cells_ TW_GUARDED_BY(mutex_);
  std::deque<Arrived> arrived_ TW_GUARDED_BY(mutex_);
  std::deque<wire::VerbsControl> news_ TW_GUARDED_BY(mutex_);  // not yet sent
  std::map<uint32_t, PeerSlab> peer_slabs_ TW_GUARDED_BY(mutex_);
  std::deque<DeviceRequest> waiting_ TW_GUARDED_BY(mutex_);  // accepted, and waiting for room
  // A fetch or an operation that was refused for want of room, and that there is room again.
  bool refused_fetch_ TW_GUARDED_BY(mutex_) = false;
  std::optional<Operation::Kind> refused_ TW_GUARDED_BY(mutex_);
  bool room_ TW_GUARDED_BY(mutex_) = false;
  std::deque<EndedTransfer> ended_ TW_GUARDED_BY(mutex_);
  std::deque<uint32_t> immediates_ TW_GUARDED_BY(mutex_);
  std::vector<Exposed> exposed_ TW_GUARDED_BY(mutex_);
  std::vector<std::byte> inline_ TW_GUARDED_BY(mutex_);  // scratch
  Trace* trace_ TW_GUARDED_BY(mutex_) = nullptr;

  Attention attention_ TW_GUARDED_BY(mutex_) = Attention::kAwake;
  bool want_send_ TW_GUARDED_BY(mutex_) = false;
  bool rung_ TW_GUARDED_BY(mutex_) = false;
  EndpointLifecycle life_ TW_GUARDED_BY(mutex_);
  std::optional<Poller::Timer> linger_ TW_GUARDED_BY(mutex_);
  std::optional<Poller::Timer> expecting_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::verbs
