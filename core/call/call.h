// SPDX-License-Identifier: Apache-2.0
// One RPC: a stream of messages in each direction, with deadline, metadata, cancellation and a
// status. What both ends of it have in common, and the link that carries calls.
#pragma once

#include <atomic>
#include <forward_list>
#include <string>
#include <utility>
#include <vector>

#include "access/port.h"
#include "base/mutex.h"
#include "call/stream_table.h"
#include "engine/event_queue.h"
#include "link/link.h"
#include "link/window.h"
#include "tagged/port.h"
#include "wire/call_header.h"

namespace tw {

class CallPort;
class ClientCall;

// As gRPC words it.
inline constexpr const char* kDeadlineDetails = "Deadline Exceeded";

// Metadata as it was received, kept where it arrived.
struct ReceivedMetadata {
  Hold hold;
  wire::MetadataView view;
};

// What becomes of memory that could not be sent at once, when its caller leaves.
struct Keeper {
  // Null: nobody keeps it, the caller waits.
  enum class How : uint8_t { kWait, kCopy, kHold } how = How::kWait;
  Hold (*hold)(void* context) = nullptr;  // kHold: what keeps it; asked once at most
  void* context = nullptr;
};

// Thread-safe. Ends exactly once, whatever happens first: status, cancellation, deadline or the
// loss of its link.
class Call : public Timed {
 public:
  CallPort& port() const { return *port_; }
  Link& link() const { return link_; }
  uint64_t stream() const { return stream_; }
  Nanos deadline() const { return deadline_; }
  bool ended() const { return ended_.load(); }

  // Until there is a message to take, or surely none.
  Waited wait_message(Nanos deadline);
  // There is a message to take; another thread may take it first.
  bool has_message() const { return !empty(); }
  // The next message from the peer; false: none (any more). std::bad_alloc leaves it where it is.
  bool take(InMessage& message);
  // No message comes any more. Those that are here can still be taken.
  bool input_over() const { return input_ended() || ended(); }
  Waited wait_ended(Nanos deadline);

  bool sendable() const { return send_window_.open() || over(); }
  // Nothing that is sent will be looked at: the call has ended, or its server is done with it.
  bool over() const { return ended() || peer_done_.load(std::memory_order_acquire); }
  // Held from the look whether a message may be sent until it has been queued: where several
  // threads send, each pays for its own, in the order in which the peer counts them.
  Mutex& turn() TW_RETURNS_MUTEX(turn_) { return turn_; }
  // Until the peer has room for one more message, or the call has ended.
  Waited wait_sendable(Nanos deadline);
  // Until the caller's memory is free again, or the call has ended.
  Waited wait_sent(const Outgoing& outgoing, Nanos deadline);
  // For the first message of a call, after which the caller goes its way: sends on while the peer
  // keeps pace, then leaves the memory to its keeper and the rest to others, until the call ends.
  // RESOURCE_EXHAUSTED: there is no memory for a copy, and the message was given up.
  Status see_off(const Ref<Outgoing>& outgoing, std::span<OutSegment> segments,
                 const Keeper& keeper) {
    if (!outgoing) return {};
    pace(*outgoing);
    Status left = leave(outgoing, segments, keeper);
    if (over()) withdraw_kept();
    return left;
  }
  // Gives up what has not been sent whole. True: the peer will not see the message, and its credit
  // has come back.
  bool withdraw(const Ref<Outgoing>& outgoing);

  // For streams: whether messages follow one another so fast that a small one may wait for company.
  bool in_burst() TW_REQUIRES(turn_);

  enum class Happening : uint8_t {
    kEnded,
    kCut,      // it has ended, but its server's end has not finished it
    kMessage,  // there is a message to take, or surely none
    kRoom,     // one more message may be sent, or none will be looked at
    kInitial,  // the server's initial metadata has come, or never will
  };
  // Puts `token` into `queue` once that has happened, at once if it has. std::bad_alloc: it never
  // comes.
  void notify(Happening what, Ref<EventQueue> queue, uint64_t token);

 protected:
  Call(Ref<CallPort> port, uint64_t stream, Nanos deadline);

  friend class CallPort;
  friend class StreamTable<Call>;
  // The user takes a message.
  virtual void on_take() {}
  // Baton held. A status that is not ok ends the link.
  virtual Status on_message(Ref<Parcel> message) = 0;
  // This end closes the link: the peer is to hear of it while that is possible.
  virtual void on_closing(const Status& why) = 0;
  virtual void on_lost(const Status& why) = 0;
  virtual bool initial_known() const { return true; }
  // As Receiver::Sink::on_land(): a segment of so many bytes. Baton held.
  virtual Ref<PostedBuffer> place_for(size_t, size_t) { return nullptr; }
  Status on_credit(uint64_t bytes);
  // What the peer may still send, by the messages that were handed up.
  int64_t peer_credit();

  // Encodes the header and sends. The peer's credit was waited for where it matters.
  Result<Ref<Outgoing>> send(const wire::CallHeader& header, std::span<OutSegment> segments,
                             bool driving, bool defer = false);
  void pace(const Outgoing& outgoing);
  Status leave(const Ref<Outgoing>& outgoing, std::span<OutSegment> segments, const Keeper& keeper);
  // Gives up what was left to others.
  void withdraw_kept();
  // The peer's message joins those that wait for take(); false: it was sent without credit.
  bool enqueue(Ref<Parcel> message);
  bool input_ended() const { return input_ended_.load(std::memory_order_acquire); }
  void end_input() { input_ended_.store(true, std::memory_order_release); }
  // The messages that nobody has taken, and those to come, are dropped.
  void discard_input();
  // The last of the messages that had come was taken.
  virtual void on_emptied() {}
  bool empty() const { return waiting_messages_.load(std::memory_order_acquire) == 0; }
  bool peer_done() const { return peer_done_.load(std::memory_order_acquire); }
  void set_peer_done() { peer_done_.store(true, std::memory_order_release); }
  // True for the one caller that ends the call; finish_ending() tells the others. `finished`: by
  // this end's own will.
  // seq_cst: see ClientCall::end().
  bool begin_ending() { return !ending_.exchange(true, std::memory_order_seq_cst); }
  bool ending() const { return ending_.load(std::memory_order_seq_cst); }
  void finish_ending(bool finished = false);
  // Wakes who waits for what has just happened. `watched`: whether there were notes when the change
  // was made under mutex_.
  void tell(bool watched) {
    event_.notify();
    if (watched) tell_notes();
  }
  // The same for a change that was not made under mutex_. Whoever adds a note looks after that
  // whether it has happened; here it is the other way round, so that one of the two sees it.
  void tell() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    tell(watched_.load(std::memory_order_relaxed));
  }

  const Ref<CallPort> port_;
  Link& link_;  // the port's
  const uint64_t stream_;
  const Nanos deadline_;
  Event event_;

 private:
  Call* next_in_table_ = nullptr;  // the table's
  std::atomic<uint32_t> waiting_messages_{0};
  std::atomic<bool> input_ended_{false};
  SendWindow send_window_;
  std::atomic<bool> peer_done_{false};
  std::atomic<bool> ending_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> kept_{false};

  struct Note {
    Notice notice;
    Happening what;
  };
  bool happened(Happening what) const;
  void tell_notes();

  Mutex turn_;  // of senders; the link's send lock and mutex_ are taken inside
  Nanos last_send_ TW_GUARDED_BY(turn_) = 0;
  uint32_t quick_sends_ TW_GUARDED_BY(turn_) = 0;

  Mutex mutex_;  // guards what follows; no other lock is taken inside
  ParcelQueue inbox_ TW_GUARDED_BY(mutex_);
  bool discarding_ TW_GUARDED_BY(mutex_) = false;
  ReceiveWindow receive_window_ TW_GUARDED_BY(mutex_);
  bool finished_ TW_GUARDED_BY(mutex_) = false;
  std::forward_list<Note> notes_ TW_GUARDED_BY(mutex_);
  std::atomic<bool> watched_{false};  // there are notes; read without the lock, too
};

// The calls of a link. Either end begins some; this one serves none of the peer's, unless it is a
// ServerPort.
class CallPort : public MessagePort {
 public:
  // A link that a poller of the runtime's looks after.
  static Result<Ref<CallPort>> create(Runtime& runtime, std::unique_ptr<Transport> transport,
                                      Peer peer, uint64_t max_message,
                                      Link::Role role = Link::Role::kClient,
                                      const Wanted& wanted = {});
  explicit CallPort(Link& link)
      : link_(link),
        access_(link.attach<AccessPort>()),
        tagged_(link.attach<TaggedPort>()),
        own_streams_(link.role() == Link::Role::kServer ? wire::kAcceptorStreams : 0) {}

  // A reference to it is one to its link.
  void retain() const noexcept { link_.retain(); }
  void release() const noexcept { link_.release(); }
  Link& link() const { return link_; }
  // Operations on exposed memory, on the same link.
  AccessPort& access() const { return access_; }
  // Tagged messages, likewise.
  TaggedPort& tagged() const { return tagged_; }

  size_t calls() const;
  LinkStats stats();
  void count_dropped_call() { dropped_calls_.fetch_add(1, std::memory_order_relaxed); }
  // Calls that have come, and wait until others of this link have begun to be served.
  size_t waiting_calls() const { return waiting_calls_.load(std::memory_order_acquire); }
  // `until_read`: however the peer ends the call, it lasts until its messages have been taken.
  // UNAVAILABLE: the link is lost or the peer is going away.
  Result<Ref<ClientCall>> new_call(Nanos deadline, bool until_read = false);
  // Nobody will start a call any more: the link closes once those under way have ended.
  void abandon() noexcept;
  // As its user closes it: no more calls, and those under way end with CANCELLED.
  void close() noexcept;
  // Puts `token` into `queue` once the link carries no calls any more, at once if it does not.
  // std::bad_alloc: it never comes.
  void notify_gone(Ref<EventQueue> queue, uint64_t token);

 protected:
  friend class Call;
  Streams streams() const override { return Streams::kCalls; }
  Status on_message(Ref<Parcel> message) override;
  // Baton held: a message of a call that the peer has begun, or begins.
  virtual Status on_request(Ref<Parcel> message);
  // Ends a call that the peer has begun and this end does not know. With details of up to 50 bytes
  // that takes no more than twice what begins a call.
  void answer(uint64_t stream, Code code, std::string_view details);

  // The call takes part until remove(). False: the link carries none any more.
  bool add(Call& call);
  void remove(uint64_t stream);
  Ref<Call> find(uint64_t stream) const;

  Result<Receiver::Cost> on_wait(uint64_t stream, std::span<const std::byte> header,
                                 uint64_t payload_bytes, const Receiver::Cost& ahead) override;
  Ref<PostedBuffer> on_land(const Parcel& message, size_t segment) override;
  Status on_credit(uint64_t stream, uint64_t bytes) override;
  void on_closing(const Status& why) override;
  void on_closed(const Status& why) override { end_all(why); }
  void on_lost(const Status& why) override { end_all(why); }
  void on_timer() override;
  // The link carries no calls any more; perhaps more than once.
  virtual void end_all(const Status& why);

  Link& link_;

  std::atomic<uint64_t> refused_calls_{0};
  std::atomic<size_t> waiting_calls_{0};

 private:
  AccessPort& access_;
  TaggedPort& tagged_;
  const uint64_t own_streams_;  // of the calls that this end begins
  std::atomic<uint64_t> begun_calls_{0};
  std::atomic<uint64_t> dropped_calls_{0};
  mutable Mutex calls_mutex_;  // guards what follows; no other lock is taken inside
  StreamTable<Call> calls_ TW_GUARDED_BY(calls_mutex_);
  bool closed_ TW_GUARDED_BY(calls_mutex_) = false;
  bool abandoned_ TW_GUARDED_BY(calls_mutex_) = false;
  Notices gone_ TW_GUARDED_BY(calls_mutex_);
};

}  // namespace tw
