// SPDX-License-Identifier: Apache-2.0
// A live connection to one authenticated peer: who drives it, what it sends and receives, and how
// it ends.
//
// Three locks, never nested except as said here:
//   baton       whoever holds it receives, parses and delivers. User code never runs under it.
//   send lock   guards the sender and Transport::send. May be taken with the baton held.
//   fin lock    guards the leases that are waiting to be given back. Innermost.
// docs/threads.md tells the whole story.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/baton.h"
#include "engine/spin.h"
#include "engine/waiting.h"
#include "link/counters.h"
#include "link/fetches.h"
#include "link/lifecycle.h"
#include "link/port.h"
#include "link/silence.h"
#include "meet/peer.h"
#include "message/receiver.h"
#include "message/sender.h"
#include "message/thresholds.h"
#include "process/online_thresholds.h"
#include "process/runtime.h"
#include "transport/transport.h"

namespace tw {

class Link final : public Listed<Watcher>, private Receiver::Sink, private Runtime::Subscriber {
 public:
  // Which end this is: kClient has connected, kServer has accepted.
  enum class Role : uint8_t { kClient, kServer };
  // `poller` looks after the link from start() on, while nobody drives it; it has its timers from
  // now on. `wanted`: thresholds that whoever makes the link asks for.
  Link(Runtime& runtime, Poller& poller, std::unique_ptr<Transport> transport, Peer peer,
       uint64_t max_message, Role role, const Wanted& wanted = {});
  ~Link() override;

  // Before start(): what rides on it, one of each kind.
  template <class P, class... A>
  P& attach(A&&... arguments) {
    auto port = std::make_unique<P>(*this, std::forward<A>(arguments)...);
    P& attached = *port;
    take(std::move(port));
    return attached;
  }
  // Nobody can drive it before. A link that cannot be looked after is lost.
  Status start();

  Role role() const { return role_; }
  const char* transport() const { return transport_->profile().name; }
  // The transport's, with the thresholds of this link as they were when it was made.
  const Profile& profile() const { return profile_; }
  // As they are now.
  Thresholds thresholds() const;
  // Up to this size a segment of the next message is copied along.
  size_t eager_bytes() const { return online_ ? online_->eager_bytes() : profile_.eager_bytes; }
  // What calls of this link and others to its host have found for that; null: it stays as it is.
  OnlineThreshold* online() const { return online_.get(); }
  const Peer& peer() const { return peer_; }
  Runtime& runtime() const { return runtime_; }
  // Something may begin on it.
  bool alive() const { return life_.alive(); }
  // This end has closed it, or it is lost.
  bool closed() const { return !life_.open(); }
  // The peer has closed it, and has given no reason before: what it had sent still comes.
  bool peer_closed() const { return life_.peer_closed(); }
  // It carries nothing any more, and what it had not sent was dropped.
  bool lost() const { return life_.lost(); }
  // Why it is not alive; ok while it is.
  Status death() const { return life_.why(); }
  LinkStats stats();
  Trace::Record trace() const { return trace_.record(); }

  // True in a forked child: the link is the parent's.
  bool inherited() const { return !home_.here(); }

  // Lets calls that are under way go on, and asks the peer to start no others.
  void go_away(Code code, std::string_view reason);
  // Does what the peer or this end counts on, and nobody else would do. Without the memory for it
  // the link is lost: where it stands is not known. No lock of the link's held.
  template <class Work>
  void surely(Work&& work) noexcept {
    try {
      work();
    } catch (const std::bad_alloc&) {
      starve();
    }
  }
  // In a handler of std::bad_alloc, from any thread and with no lock of the link's: whoever drives
  // it loses it.
  void starve() noexcept;
  // Ends it: no more calls; the transport stays until the last lease of either side has come home,
  // or the peer dies.
  void close(Status why);

  // Sends, or queues what the transport cannot take now. With `driving` the caller is going to wait
  // on this link, so nobody else has to be woken for the rest. `defer` lets a small message wait
  // for company (see flush()).
  Result<Ref<Outgoing>> send(uint64_t stream, std::span<const std::byte> header,
                             std::span<OutSegment> segments, Event* event, Hold owner,
                             bool driving = false, bool defer = false);
  void send_credit(uint64_t stream, uint64_t bytes);
  // As Sender::withdraw(). Without the memory for it the link is lost, and reads nobody's from now
  // on.
  bool withdraw(const Ref<Outgoing>& outgoing);
  // The same for all messages of a stream.
  void withdraw_stream(uint64_t stream);
  // As Sender::keep(); somebody else sends the rest.
  void keep(const Ref<Outgoing>& outgoing, std::span<const OutSegment> segments, Hold memory,
            Nanos deadline);
  // Bytes of frames that the transport has not taken; payload of large segments is no part of them.
  size_t queued() const { return queued_.load(std::memory_order_relaxed); }
  // Whether the end of this process could take back something that the transport took.
  bool undelivered();
  // As Transport::host_answer().
  std::optional<HostAnswer> host_answer() { return transport_->host_answer(); }
  // Sends what says nothing, and the peer's host acknowledges.
  void ask_host() { send_credit(wire::kNoStream, 1); }
  // The peer's host has been silent for longer than groups bear: the link is lost.
  void lose_host();
  // All that waits for the peer, and nobody waits for.
  size_t backlog() const TW_UNCHECKED { return sender_.backlog() + queued(); }  // an atomic
  // Sends what was deferred; the caller is going to wait on this link.
  void flush();
  // After event.notify() by another thread than the driver: the driver may be who waits for it.
  void nudge(const Event& event) {
    if (event.driven()) transport_->interrupt();
  }
  void count_copy(uint64_t bytes);
  void count_trial() { trials_.fetch_add(1, std::memory_order_relaxed); }
  void count_threshold_move() { threshold_moves_.fetch_add(1, std::memory_order_relaxed); }
  // A segment is pushed, because the arena had no room or no lease for it.
  void count_crowded(Status why);
  // The peer's memory on lease to this process, if these bytes can go back as such: see
  // PeerArena::held().
  Ref<LeasedView> held(std::span<const std::byte> bytes) const;
  // What the peer has of its share of the arena.
  size_t share_bytes() const TW_UNCHECKED { return sender_.share_bytes(); }  // an atomic

  // Calls wait(until) again and again, which is a wait for something to be sent, for as long as the
  // peer takes what is sent at a good pace: a fast reader is served by the thread that has
  // something for it, and none waits for a slow one.
  template <class Wait>
  void at_pace(Wait&& wait);

  // Returns once done() holds. Drives the link, or sleeps on `event` while another thread does;
  // whatever makes done() true must notify `event` afterwards, and nudge() unless it was the
  // driver. A lost link ends every call, hence every wait.
  template <class Done>
  Waited wait(Event& event, Done&& done, Nanos deadline);

  // Has on_timer() of the ports called soon, by the poller's thread and with no lock held.
  void look_soon() { poller_.add_timer(0, Ref<Watcher>::share(this)); }

  // A server's worker: takes the baton ahead of its reply, so that the next request needs no
  // doorbell.
  bool try_drive() TW_TRY_ACQUIRE(true, baton_);
  // As wait(), and keeps the baton.
  template <class Done>
  Waited drive(Done&& done, Nanos deadline) TW_REQUIRES(baton_);
  // Moves bytes until done(), until nothing came within the spin budget, or for a turn, calls
  // last(), and hands the baton on.
  template <class Done, class Last>
  void drive_briefly(Done&& done, Last&& last) TW_RELEASE(baton_);

  // ---- for ports that have frames of their own ----

  class Sending;  // the send lock
  // The names of that lock and of the baton.
  Mutex& send_mutex() TW_RETURNS_MUTEX(send_mutex_) { return send_mutex_; }
  const Baton& baton() const TW_RETURNS_MUTEX(baton_) { return baton_; }
  // No lock held, after Sending. `backlog`: something was left to be sent before; now that it has
  // gone, the driver may be the one who waits for that.
  void after_flush(bool backlog, bool driving);
  // No lock held: something is left for whoever drives. With `driving` the caller is going to.
  void kick(bool driving);
  // No lock held: see Transport::revoke().
  void revoke() { transport_->revoke(); }
  Transport& device() TW_REQUIRES(baton_) { return *transport_; }

 private:
  // kBroken: the transport takes nothing any more. kEnded: everything was let go of.
  enum class Sends : uint8_t { kOn, kBroken, kEnded };
  // A deferred message waits until this much has gathered.
  static constexpr size_t kDeferLimit = 16 << 10;
  // ... or until this time has passed.
  static constexpr Nanos kDeferTime = 200 * kMicrosecond;
  // So long a thread that others need stays with one link: a peer that sends without end keeps it
  // neither from other links nor from deadlines.
  static constexpr Nanos kTurn = 100 * kMicrosecond;
  // A wait looks at its deadline after so many steps that have moved something.
  static constexpr unsigned kStepsUnlooked = 16;

  // How long a lease may wait for a message that takes it along.
  static constexpr Nanos kReturnTime = 5 * kMillisecond;

  // A reader takes its time for as long before it has to keep pace, with so long for a byte.
  static constexpr Nanos kPaceGrace = 2 * kMillisecond;
  static constexpr Nanos kPacePerByte = 8;
  // So long a worker moves bytes of a message that comes in piece by piece.
  static constexpr Nanos kLongestPoll = 20 * kMillisecond;

  // A link that closes waits so long for its peer to take the last bytes, and looks so often.
  static constexpr Nanos kLinger = 2 * kSecond;
  static constexpr Nanos kLingerLook = kMillisecond;

  // Leases wait for a message to take them along, but no more than this many.
  static constexpr size_t kReturnsTogether = 16;

  class Returns;  // where views give leases back; outlives the link

  void take(std::unique_ptr<MessagePort> port) {
    auto& place = messages_[static_cast<size_t>(port->streams())];
    place = std::move(port);
  }
  void take(std::unique_ptr<MemoryPort> port) { memory_ = std::move(port); }

  Status be_watched() TW_REQUIRES(baton_);
  bool step() TW_REQUIRES(baton_);
  void steps() TW_REQUIRES(baton_);
  bool move() TW_REQUIRES(baton_);
  void out_of_memory() TW_REQUIRES(baton_);
  void give_up(Lifecycle::Doom why) TW_REQUIRES(baton_);
  void flush_returns() TW_REQUIRES(baton_);
  bool take_completions() TW_REQUIRES(baton_);
  Status start_fetches() TW_REQUIRES(baton_);
  void fail(Status why) TW_REQUIRES(baton_);
  void hand_on() TW_RELEASE(baton_);
  void lose(Status why) TW_REQUIRES(baton_);
  // True: something was given up, or the link is lost.
  template <class Withdraw>
  bool withdraw_by(Withdraw&& withdraw);
  void flush_locked() TW_REQUIRES(send_mutex_);
  void sent_locked(uint64_t bytes, bool defer) TW_REQUIRES(send_mutex_);
  bool flush_all();
  void queue_fins_locked() TW_REQUIRES(send_mutex_);
  void return_lease(uint64_t id);
  // Reads that the device has not done.
  size_t fetching() const TW_UNCHECKED { return fetches_.pending(); }  // an atomic
  bool keeps_leases() const { return life_.open() && calls().returns_later(); }
  MessagePort& calls() const {
    return *messages_[static_cast<size_t>(MessagePort::Streams::kCalls)];
  }
  MessagePort& port_of(uint64_t stream) const { return *messages_[MessagePort::kind_of(stream)]; }
  bool drained() TW_REQUIRES(baton_);
  bool lingers(bool comes) TW_REQUIRES(baton_);
  void tell_crowded(const Status& why);
  void watch_reader() TW_REQUIRES(send_mutex_);
  void look_at_reader();
  void watch_host() TW_REQUIRES(send_mutex_);
  void look_at_host();
  void on_event(uint32_t tag, uint32_t events) override;
  void on_timer() override;
  bool noticed(uint32_t tag, uint32_t events);
  Status on_message(Ref<Parcel> message) override;
  Result<Receiver::Cost> on_wait(uint64_t stream, std::span<const std::byte> header,
                                 uint64_t payload_bytes, const Receiver::Cost& ahead) override {
    return port_of(stream).on_wait(stream, header, payload_bytes, ahead);
  }
  void on_given_up(const Parcel& message) override {
    port_of(message.stream()).on_given_up(message);
  }
  Ref<PostedBuffer> on_land(const Parcel& message, size_t segment) override {
    return port_of(message.stream()).on_land(message, segment);
  }
  Status on_fin(std::span<const uint64_t> ids) override;
  Status on_unmappable(uint64_t lease) override;
  Status on_credit(uint64_t stream, uint64_t bytes) override {
    return port_of(stream).on_credit(stream, bytes);
  }
  void on_go_away(Code code, std::string_view reason) override;
  Result<InSegment> on_map(const wire::SegmentInfo& segment) override;
  Result<InSegment> on_return(const wire::SegmentInfo& segment) override;
  Status on_region(const wire::Region& region) override { return memory_->on_region(region); }
  Status on_region_gone(uint64_t region) override { return memory_->on_region_gone(region); }
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here) override {
    return memory_->on_operation(operation, here);
  }
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override {
    return memory_->on_outcome(outcome, here);
  }
  Status on_placed(wire::FrameType type) override { return memory_->on_placed(type); }
  void slabs_dropped() override;
  void keep_trace(size_t events) override { trace_.keep(events); }
  void leave_trace() noexcept override;

  static constexpr uint32_t kDeath = 100;  // tag of the pidfd

  Runtime& runtime_;
  Trace trace_;
  std::atomic<bool> trace_left_{false};
  const std::unique_ptr<Transport> transport_;
  const bool between_hosts_;  // and the transport tells what the peer's host answers
  const Peer peer_;
  Profile profile_;  // settled by the next one
  const Thresholds thresholds_;
  const Ref<OnlineThreshold> online_;
  const Role role_;
  const Birthplace home_;

  Baton baton_;
  Receiver receiver_ TW_GUARDED_BY(baton_);
  const ReceiveCounters& received_;  // of the receiver; read without the baton
  Fetches fetches_ TW_GUARDED_BY(baton_);
  Spinner spinner_ TW_GUARDED_BY(baton_);
  uint64_t came_ TW_GUARDED_BY(baton_) = 0;  // bytes that the transport has brought

  Mutex send_mutex_;
  Sender sender_ TW_GUARDED_BY(send_mutex_);
  // The sender is between two frames.
  bool turn_ended_ TW_GUARDED_BY(send_mutex_) = true;
  // Frames of memory_ are due, not the sender's.
  bool operations_turn_ TW_GUARDED_BY(send_mutex_) = false;
  Sends sends_ TW_GUARDED_BY(send_mutex_) = Sends::kOn;
  // For what was deferred, and for leases that wait to be taken along.
  std::optional<Poller::Timer> defer_timer_ TW_GUARDED_BY(send_mutex_);
  std::optional<Poller::Timer> return_timer_ TW_GUARDED_BY(send_mutex_);
  // Looks whether the peer reads, while something is left to be sent; what had been taken at the
  // last look, and when that had last grown.
  std::optional<Poller::Timer> reader_timer_ TW_GUARDED_BY(send_mutex_);
  // Looks whether the peer's host answers, while something that was sent is not acknowledged.
  std::optional<Poller::Timer> host_timer_ TW_GUARDED_BY(send_mutex_);
  Silence host_silence_ TW_GUARDED_BY(send_mutex_);
  // Looks whether the transport of a link that closes still has something for the peer.
  std::optional<Poller::Timer> linger_timer_ TW_GUARDED_BY(send_mutex_);
  Nanos linger_until_ TW_GUARDED_BY(send_mutex_) = 0;
  uint64_t reader_took_ TW_GUARDED_BY(send_mutex_) = 0;
  Nanos reader_moved_ TW_GUARDED_BY(send_mutex_) = 0;
  std::atomic<uint64_t> taken_{0};  // bytes that the transport took; the send lock's owner writes
  // What had been taken when the reader was found to be slow: nobody waits for it until it moves.
  std::atomic<uint64_t> behind_at_{~uint64_t{0}};
  std::atomic<size_t> queued_{0};  // the send lock's owner writes
  // Whether the sender has something left. Its order matters: see kick().
  std::atomic<bool> unsent_{false};
  // Whether some of it may wait for company: whoever waits on the link sends it first. The send
  // lock's owner writes.
  std::atomic<bool> deferred_{false};

  std::array<std::unique_ptr<MessagePort>, MessagePort::kKinds> messages_;
  std::unique_ptr<MemoryPort> memory_;

  Mutex fin_mutex_;
  std::vector<uint64_t> fins_ TW_GUARDED_BY(fin_mutex_);
  std::atomic<bool> fins_due_{false};
  std::atomic<uint64_t> views_{0};  // of the peer's memory, not given back
  std::atomic<uint64_t> unmapped_{0};
  const Ref<Returns> returns_;

  Lifecycle life_;

  Poller& poller_;
  Poller::Watch death_watch_ = 0;

  LinkStats::Class& class_of(uint64_t bytes);
  LinkStats::Classes classes_;

  Mutex stats_mutex_;
  uint64_t copies_ TW_GUARDED_BY(stats_mutex_) = 0;
  uint64_t copied_bytes_ TW_GUARDED_BY(stats_mutex_) = 0;
  uint64_t crowded_ TW_GUARDED_BY(stats_mutex_) = 0;
  Status crowded_why_ TW_GUARDED_BY(stats_mutex_);
  std::atomic<bool> crowded_told_{false};
  std::atomic<uint64_t> spins_{0}, sleeps_{0}, background_wakes_{0};
  std::atomic<uint64_t> trials_{0}, threshold_moves_{0};
};

// Holds the send lock. What the sender is done with is let go of after it: an owner may do
// anything, even give a lease of this very link back.
class TW_SCOPED_CAPABILITY Link::Sending {
 public:
  explicit Sending(Link& link) TW_ACQUIRE(link.send_mutex_)
      : link_(link), lock_(link.send_mutex_) {}
  ~Sending() TW_RELEASE() { spent_ = link_.sender_.take_spent(); }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  // For ports. Everything was let go of; nothing can be sent any more.
  bool ended() const {
    held();
    return link_.sends_ == Sends::kEnded;
  }
  // The transport takes nothing any more.
  bool broken() const {
    held();
    return link_.sends_ != Sends::kOn;
  }
  // Half a frame may be queued: nothing that follows would be understood.
  void break_off() {
    held();
    link_.sends_ = std::max(link_.sends_, Sends::kBroken);
  }
  // Something is left to be sent.
  bool backlog() const { return link_.unsent_.load(); }
  void flush() {
    held();
    link_.flush_locked();
  }
  Sender& sender() {
    held();
    return link_.sender_;
  }
  Transport& transport() { return *link_.transport_; }

 private:
  // For as long as this lives.
  void held() const TW_ASSERT_HELD(link_.send_mutex_) {}

  Link& link_;
  std::vector<Hold> spent_;
  const MutexLock lock_;
};

// ---- waiting ----

template <class Done>
Waited Link::drive(Done&& done, Nanos deadline) {
  // A peer that sends without a gap ends no deadline, and holds up no look at signals.
  unsigned busy = 0;
  const auto late = [&] { return ++busy % kStepsUnlooked == 0 && now() >= deadline; };
  for (;;) {
    if (done()) return Waited::kDone;
    if (step()) {
      if (late()) return done() ? Waited::kDone : Waited::kTimeout;
      continue;
    }
    if (lost()) return Waited::kDone;
    bool moved = false;
    if (spinner_([&] {
          baton_.held();
          return (transport_->readable() && (moved = step())) || done();
        })) {
      spins_.fetch_add(moved, std::memory_order_relaxed);
      if (late()) return done() ? Waited::kDone : Waited::kTimeout;
      continue;
    }
    if (lost()) return Waited::kDone;
    if (fins_due_.load(std::memory_order_relaxed)) flush_returns();
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    switch (transport_->sleep(unsent_.load(), deadline)) {
      case Wake::kReady:  // which a peer that shares the word of the sleep can say without end
        if (now() >= deadline) return done() ? Waited::kDone : Waited::kTimeout;
        break;
      case Wake::kTimeout:
        return done() ? Waited::kDone : Waited::kTimeout;
      case Wake::kSignal:
        return done() ? Waited::kDone : Waited::kSignal;
    }
  }
}

template <class Wait>
void Link::at_pace(Wait&& wait) {
  const uint64_t before = taken_.load(std::memory_order_relaxed);
  if (before == behind_at_.load(std::memory_order_relaxed)) return;
  const Nanos begun = now();
  uint64_t last = before;
  for (Nanos until = begun + kPaceGrace;;) {
    if (wait(until) != Waited::kTimeout) return;
    const uint64_t taken = taken_.load(std::memory_order_relaxed);
    const Nanos due = begun + kPaceGrace + static_cast<Nanos>(taken - before) * kPacePerByte;
    // What the kernel has buffered at once is no promise that more is taken.
    if (taken == last || due <= until) {
      behind_at_.store(taken, std::memory_order_relaxed);
      return;
    }
    last = taken;
    until = std::min(due, until + kPaceGrace);
  }
}

template <class Done>
Waited Link::wait(Event& event, Done&& done, Nanos deadline) {
  if (deferred_.load(std::memory_order_relaxed)) surely([this] { flush(); });
  Baton::Waiter waiter(event);
  bool queued = false;
  Waited result = Waited::kDone;
  for (;;) {
    const uint32_t seen = event.sequence();
    if (done()) break;
    // With a lost link there is nothing to drive: whoever ends the calls tells their events.
    const bool is_lost = lost();
    if (!is_lost && baton_.try_take()) {
      if (std::exchange(queued, false)) baton_.leave(waiter);
      transport_->disarm();
      event.set_driven(true);
      result = drive(done, deadline);
      event.set_driven(false);
      hand_on();
      if (result != Waited::kDone || done()) return result;
      continue;
    }
    if (!is_lost && !queued) {
      // Once in the queue it looks again: the baton may have been freed in between.
      baton_.enter(waiter);
      queued = true;
      continue;
    }
    const FutexWait woken = event.wait(seen, deadline);
    if (woken == FutexWait::kWoken) continue;
    if (done()) break;
    result = woken == FutexWait::kTimeout ? Waited::kTimeout : Waited::kSignal;
    break;
  }
  if (queued) {
    baton_.leave(waiter);
    // It may have been woken to take the baton and not need it any more: then the next must hear of
    // it.
    if (baton_.try_take()) hand_on();
  }
  return result;
}

template <class Done, class Last>
void Link::drive_briefly(Done&& done, Last&& last) {
  const Nanos begun = now();
  const auto over = [&] {
    baton_.held();
    return now() - begun >= (receiver_.midway() ? kLongestPoll : kTurn);
  };
  while (!done() && !lost()) {
    bool moved = step();
    if (!moved && spinner_([&] {
          baton_.held();
          return transport_->readable() && step();
        })) {
      spins_.fetch_add(1, std::memory_order_relaxed);
      moved = true;
    }
    if (moved) {
      if (done() || over()) break;
      continue;
    }
    // The rest of a message that has begun is worth waiting for; a peer that stalls is left to the
    // background.
    if (!receiver_.midway() || over() ||
        transport_->sleep(unsent_.load(), now() + kMillisecond) != Wake::kReady)
      break;
  }
  last();
  hand_on();
}

}  // namespace tw
