// SPDX-License-Identifier: Apache-2.0
// Who serves: listens, takes in links, and hands out the calls that arrive on them.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "call/call.h"
#include "call/call_queue.h"
#include "engine/waiting.h"
#include "meet/listener.h"

namespace tw {

class Server;
class ServerPort;

class ServerCall final : public Call {
 public:
  // All three point into the message that started the call, and live as long as it.
  std::string_view method() const { return method_; }
  const ReceivedMetadata& metadata() const { return metadata_; }
  // False once it is finished, cancelled, past its deadline, or its link is lost.
  bool active() const { return !ended() && (deadline() == kForever || now() < deadline()); }

  // True when nobody waits for the call any more. It is over then, and counted as dropped.
  bool drop_if_over();
  // Somebody serves it from now on; so does who takes a message, or ends the call.
  void begun();
  // The same for who was handed the call some time ago. False: as drop_if_over().
  bool take_up() {
    if (drop_if_over()) return false;
    begun();
    return true;
  }

  // Once, before the first message, unless a message or the status takes it along.
  // FAILED_PRECONDITION the second time.
  Status send_initial(std::span<const wire::MetadataEntry> metadata);
  Result<Ref<Outgoing>> send_message(std::span<OutSegment> segments, bool defer);
  // Sends the status, with a last message if `payload`, and returns once nobody needs its memory
  // any more. False: the call had ended, nothing was sent.
  bool finish(Code code, std::string_view details = {},
              std::span<const wire::MetadataEntry> trailing = {}, bool payload = false,
              std::span<OutSegment> segments = {}, const Keeper& keeper = {});
  // As finish(), then the next call on the same link if one comes within the spin budget.
  bool finish_and_poll(Code code, std::string_view details,
                       std::span<const wire::MetadataEntry> trailing, bool payload,
                       std::span<OutSegment> segments, const Keeper& keeper, Ref<ServerCall>& next);

 private:
  friend class ServerPort;
  ServerCall(Ref<ServerPort> port, uint64_t stream, Nanos deadline, ReceivedMetadata metadata,
             std::string_view method);
  ServerPort& server_port() const;
  // Bytes of replies that may wait for the client.
  size_t most_unread() const;
  Status on_message(Ref<Parcel> message) override;
  void on_closing(const Status& why) override;
  void on_lost(const Status& why) override;
  bool send_end(Code code, std::string_view details, std::span<const wire::MetadataEntry> trailing,
                bool payload, std::span<OutSegment> segments, bool driving,
                Ref<Outgoing>& outgoing);
  void depart(const Ref<Outgoing>& outgoing, std::span<OutSegment> segments, const Keeper& keeper);
  void send_status(Code code, std::string_view details, bool driving);

  const ReceivedMetadata metadata_;
  const std::string_view method_;
  void on_take() override { begun(); }
  void over();
  void drop();
  std::atomic<bool> initial_sent_{false};
  std::atomic<bool> cancelled_{false};  // by the client, when the call's end had begun
  std::atomic<bool> begun_{false};
};

// Thread-safe.
class Server final : public RefCounted {
 public:
  // `max_message`: bytes of a message that a peer may send; nothing: as the settings say.
  static Result<Ref<Server>> create(std::optional<uint64_t> max_message = std::nullopt);

  // Bytes of replies that may wait for one client, instead of what the settings say.
  void limit_unread(size_t bytes) { most_unread_.store(bytes, std::memory_order_relaxed); }
  size_t most_unread() const { return most_unread_.load(std::memory_order_relaxed); }

  const wire::InstanceId& instance() const { return runtime_.instance(); }
  meet::Listener& listener() { return *listener_; }

  // At most `room` new calls, of one link after the other; those that nobody waits for any more are
  // dropped. Whoever is in here drives all links that nobody else drives; one thread at a time.
  Waited next(std::vector<Ref<ServerCall>>& calls, size_t room, Nanos deadline);

  // A peer that has proved itself: by the listener, or to whoever made the transport.
  void arrived(meet::Connected connected);
  // Serves a peer that this process has connected to, over the link that its own calls take.
  // UNAVAILABLE: the server is closed.
  Result<Ref<CallPort>> join(meet::Connected connected, uint64_t max_message,
                             const Wanted& wanted = {});
  // Puts `token` into `queue` when a peer next comes or goes, or the server is closed. UNAVAILABLE:
  // it is. std::bad_alloc: the token never comes.
  Status notify_peers(Ref<EventQueue> queue, uint64_t token);

  // No new calls: peers are told, and what starts nevertheless is answered UNAVAILABLE.
  void refuse();
  size_t active() const;
  void close();
  // Visits the ports of all links without a lock, and without memory of its own.
  template <class Visit>
  void each_port(Visit&& visit) const;
  // The same, of those at which calls may begin.
  template <class Visit>
  void each_peer(Visit&& visit) const;
  bool inherited() const { return !home_.here(); }

 private:
  friend class ServerPort;
  friend class ServerCall;
  class Drain;
  Server(Runtime& runtime, std::unique_ptr<Poller> poller, uint64_t max_message);
  Result<Ref<CallPort>> take_in(meet::Connected connected, uint64_t max_message, Link::Role role,
                                const Wanted& wanted);
  void queue(ServerPort& port, Ref<ServerCall> call);
  Ref<ServerCall> take_queued(ServerPort& port);
  Ref<ServerCall> take_turn();
  Ref<ServerCall> take_locked(ServerPort& port) TW_REQUIRES(mutex_);
  void forget(ServerPort& port);
  void tell_peers_changed();
  void drain();
  Ref<ServerPort> port_after(const ServerPort* last) const;
  bool deserted() const;

  Runtime& runtime_;
  const Birthplace home_;
  const uint64_t max_message_;
  std::atomic<size_t> most_unread_;
  const std::unique_ptr<Poller> poller_;
  Ref<meet::Listener> listener_;

  std::atomic<bool> refusing_{false};

  mutable Mutex mutex_;  // guards what follows; no other lock is taken inside
  // Links with queued calls, which keep them. They take turns: a client that starts many calls
  // keeps only itself waiting.
  std::list<ServerPort*> turns_ TW_GUARDED_BY(mutex_);
  bool behind_ TW_GUARDED_BY(mutex_) = false;  // next() had no room for all
  std::map<ServerPort*, Ref<ServerPort>> ports_ TW_GUARDED_BY(mutex_);
  bool closed_ TW_GUARDED_BY(mutex_) = false;
  int polling_ TW_GUARDED_BY(mutex_) = 0;  // threads in the poller, by next()
  bool drain_begun_ TW_GUARDED_BY(mutex_) = false;
  Notices peers_changed_ TW_GUARDED_BY(mutex_);
};

class ServerPort final : public CallPort {
 public:
  ServerPort(Link& link, Ref<Server> server) : CallPort(link), server_(std::move(server)) {}

  // Others may begin something on the link.
  bool ready() const { return ready_.load(std::memory_order_acquire) && link_.alive(); }
  // Calls that came from the peer and have not ended.
  size_t serving() const { return handling_.load(std::memory_order_relaxed) + waiting_calls(); }

 private:
  friend class Server;
  friend class ServerCall;

  Status on_request(Ref<Parcel> message) TW_REQUIRES(link_.baton()) override;
  void on_gone() override;
  bool returns_later() const override { return handling_.load(std::memory_order_relaxed) != 0; }
  void on_closing(const Status& why) override;
  void end_all(const Status& why) override;
  Status begin(Ref<Parcel> message) TW_REQUIRES(link_.baton());
  Ref<ServerCall> make_call(const Ref<Parcel>& start, const wire::CallHeaderView& header,
                            Nanos deadline);
  Ref<ServerCall> make_waiting(CallQueue::Entry& entry, Status& refusal)
      TW_REQUIRES(waiting_mutex_);
  void refuse_waiting(const Status& why);
  void call_begun();
  void move_up();

  const Ref<Server> server_;
  std::atomic<bool> ready_{false};
  // Where finish_and_poll wants the next call.
  Ref<ServerCall>* poll_slot_ TW_GUARDED_BY(link_.baton()) = nullptr;
  // Calls under way: their replies will take the released leases along.
  std::atomic<uint32_t> handling_{0};

  // Calls that have been handed out and not begun: workers find enough of them, and the others
  // wait as what the peer has sent.
  static constexpr size_t kMostUnbegun = 128;
  std::atomic<size_t> unbegun_{0};

  // Guarded by the server's mutex. The place among the turns is here while no call is queued.
  std::deque<Ref<ServerCall>> queued_;
  std::atomic<bool> any_queued_{false};  // read without the mutex, too
  std::list<ServerPort*> no_turn_{this};
  const std::list<ServerPort*>::iterator turn_ = no_turn_.begin();

  Mutex waiting_mutex_;  // guards what follows; a table of calls' lock is taken inside
  CallQueue waiting_ TW_GUARDED_BY(waiting_mutex_);
};

template <class Visit>
void Server::each_port(Visit&& visit) const {
  Ref<ServerPort> port = port_after(nullptr);
  for (; port; port = port_after(port.get())) visit(*port);
}

template <class Visit>
void Server::each_peer(Visit&& visit) const {
  each_port([&](ServerPort& port) {
    if (port.ready()) visit(port);
  });
}

}  // namespace tw
