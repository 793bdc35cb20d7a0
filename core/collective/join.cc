// SPDX-License-Identifier: Apache-2.0
#include "collective/join.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "call/call.h"
#include "collective/wire.h"
#include "meet/connect.h"
#include "meet/listener.h"
#include "process/all_settings.h"
#include "route/attempt.h"
#include "route/choice.h"

namespace tw::collective {
namespace {

constexpr const char* kHost = "TENSORWIRE_GROUP_HOST";
constexpr const char* kLoopback = "127.0.0.1";

std::string presence_of(int rank) { return text({"tensorwire/rank/", rank}); }
std::string invitation_of(int host, int guest) {
  return text({"tensorwire/invitation/", host, "/", guest});
}

std::string address_at(const std::string& host, int port) {
  const bool bare = host.find(':') == std::string::npos;
  return bare ? text({host, ":", port}) : text({"[", host, "]:", port});
}

// The links that ranks above this one have made, as they come. Thread-safe.
class Arrivals final : public RefCounted {
 public:
  Arrivals(Runtime& runtime, int size) : runtime_(runtime), ports_(static_cast<size_t>(size)) {}

  // By the listener; the caller's agent is its rank, as the invitation said.
  void arrived(meet::Connected connected) {
    const auto rank = static_cast<size_t>(std::stoul(connected.peer.agent));
    auto port =
        CallPort::create(runtime_, std::move(connected.transport), std::move(connected.peer),
                         runtime_.settings().max_message_bytes, Link::Role::kServer);
    if (!port) return;  // it is lost, which its other end sees
    {
      const MutexLock lock(mutex_);
      ports_[rank] = std::move(*port);
    }
    came_.notify();
  }

  Ended wait_for(int rank, const Wait& wait) {
    return wait_through(wait, [&](Nanos until) {
      for (;;) {
        const uint32_t seen = came_.sequence();
        if (has(rank)) return Waited::kDone;
        const FutexWait woken = came_.wait(seen, until);
        if (woken == FutexWait::kTimeout) return Waited::kTimeout;
        if (woken == FutexWait::kSignal) return Waited::kSignal;
      }
    });
  }
  bool has(int rank) {
    const MutexLock lock(mutex_);
    return static_cast<bool>(ports_[static_cast<size_t>(rank)]);
  }
  Ref<CallPort> take(int rank) {
    const MutexLock lock(mutex_);
    return std::move(ports_[static_cast<size_t>(rank)]);
  }

 private:
  Runtime& runtime_;
  Event came_;
  Mutex mutex_;  // guards what follows
  std::vector<Ref<CallPort>> ports_ TW_GUARDED_BY(mutex_);
};

// A listener that stops listening.
class Reception {
 public:
  Reception(Runtime& runtime, Poller& poller, Ref<Arrivals> arrivals)
      : listener_(make_ref<meet::Listener>(
            runtime, poller, [arrivals = std::move(arrivals)](meet::Connected connected) {
              arrivals->arrived(std::move(connected));
            })) {}
  Reception(const Reception&) = delete;
  Reception& operator=(const Reception&) = delete;
  ~Reception() { listener_->close(); }

  // Opens what links of this process's kinds come by; their addresses, best first.
  Result<std::vector<std::string>> open(Runtime& runtime, const route::Policy& policy,
                                        const std::string& host) {
    std::vector<std::string> addresses;
    std::string path;
    int port = 0;
    for (const auto& kind : runtime.kinds()) {
      if (!kind->chosen() || !policy.permits(kind->name()) || !kind->why_not().ok()) continue;
      if (kind->socket() == Kind::Socket::kUnix) {
        if (path.empty()) {
          auto opened = listener_->listen_local();
          if (!opened) return opened.status();
          path = std::move(*opened);
        }
        addresses.push_back(text({kind->name(), ":", path}));
      } else {
        if (port == 0) {
          auto opened = listener_->listen_tcp(host, 0);
          if (!opened) return opened.status();
          port = *opened;
        }
        addresses.push_back(text({kind->name(), ":", address_at(host, port)}));
      }
    }
    if (addresses.empty())
      return Status{Code::kFailedPrecondition, "no transport is left to reach other ranks by"};
    return addresses;
  }
  meet::Listener& listener() const { return *listener_; }

 private:
  const Ref<meet::Listener> listener_;
};

// One rank's way into the group.
class GroupEntry {
 public:
  GroupEntry(Runtime& runtime, Store& store, const Seat& seat, const Wait& wait)
      : runtime_(runtime),
        store_(store),
        seat_(seat),
        wait_(wait),
        answered_(static_cast<size_t>(seat.size)) {}

  Result<std::unique_ptr<Members>> run() {
    auto poller = runtime_.background();
    if (!poller) return poller.status();
    auto policy = route::choose(runtime_.kinds());
    if (!policy) return policy.status();
    policy_ = std::move(*policy);
    auto named = read_anew(runtime_.kinds(), kHost);
    if (!named) return named.status();
    const std::string at = !seat_.host.empty() ? seat_.host : named->empty() ? kLoopback : *named;
    const auto arrivals = make_ref<Arrivals>(runtime_, seat_.size);
    Reception reception(runtime_, **poller, arrivals);
    auto addresses = reception.open(runtime_, policy_, at);
    if (!addresses) return addresses.status();

    if (Status status = fill_random(nonce_); !status.ok()) return status;
    const auto presence = encode_presence({runtime_.hello(), nonce_});
    if (Status status = store_.set(presence_of(seat_.rank), presence); !status.ok()) return status;
    for (int guest = seat_.rank + 1; guest < seat_.size; ++guest)
      if (Status status = invite(reception.listener(), *addresses, guest); !status.ok())
        return status;

    std::vector<Ref<CallPort>> ports(static_cast<size_t>(seat_.size));
    for (int host = 0; host < seat_.rank; ++host) {
      auto port = visit(host);
      if (!port) return port.status();
      ports[static_cast<size_t>(host)] = std::move(*port);
    }
    Pause pause;
    for (int guest = seat_.rank + 1; guest < seat_.size;) {
      const Ended ended = arrivals->wait_for(guest, until(pause.next()));
      if (ended == Ended::kInterrupted) return interrupted();
      if (ended == Ended::kDone) {
        ports[static_cast<size_t>(guest)] = arrivals->take(guest);
        ++guest;
        continue;
      }
      if (now() >= wait_.deadline) return absent(guest);
      for (int late = guest; late < seat_.size; ++late) {
        if (arrivals->has(late)) continue;
        if (Status status = invite(reception.listener(), *addresses, late); !status.ok())
          return status;
      }
    }
    return std::make_unique<Members>(seat_.rank, std::move(ports));
  }

 private:
  // Between looks at what the store has of an earlier attempt, until it is of this one.
  class Pause {
   public:
    Nanos next() { return std::exchange(next_, std::min(2 * next_, 500 * kMillisecond)); }

   private:
    Nanos next_ = 5 * kMillisecond;
  };

  // This rank's wait, but no longer than that.
  Wait until(Nanos pause) const {
    return {std::min(wait_.deadline, now() + pause), wait_.interrupted, wait_.context};
  }
  static Status interrupted() { return {Code::kCancelled, "the wait was interrupted"}; }
  Status absent(int rank) const {
    return {Code::kDeadlineExceeded,
            text({"rank ", rank, " has not come to the group of ", seat_.size, " in time"})};
  }

  // What a rank has put into the store.
  Result<std::vector<std::byte>> get(int rank, const std::string& key) {
    auto value = store_.get(key, wait_);
    if (!value && value.status().code() == Code::kDeadlineExceeded) return absent(rank);
    return value;
  }

  // Unless the presence that the store has was answered before.
  Status invite(meet::Listener& listener, std::span<const std::string> addresses, int guest) {
    auto said = get(guest, presence_of(guest));
    if (!said) return said.status();
    auto presence = decode_presence(*said);
    if (!presence) return presence.status();
    std::optional<wire::Nonce>& answered = answered_[static_cast<size_t>(guest)];
    if (answered == presence->nonce) return {};
    const Nanos left = wait_.deadline == kForever ? meet::Admissions::kMaxTtl
                                                  : std::max<Nanos>(wait_.deadline - now(), 1);
    auto ticket = listener.admit(presence->hello, 1, std::min(left, meet::Admissions::kMaxTtl));
    if (!ticket) return ticket.status();
    listener.introduce(ticket->session, {}, std::to_string(guest));
    Answer answer;
    answer.to = presence->nonce;
    wire::Welcome& welcome = answer.welcome;
    welcome.hello = runtime_.hello();
    welcome.instance = runtime_.instance();
    welcome.session = ticket->session;
    std::ranges::copy(ticket->secret.bytes(), welcome.secret.begin());
    welcome.addresses.assign(addresses.begin(), addresses.end());
    if (Status status = wire::check_addresses(welcome.addresses); !status.ok()) return status;
    answered = presence->nonce;
    return store_.set(invitation_of(seat_.rank, guest), encode_answer(answer));
  }

  Result<Ref<CallPort>> visit(int host) {
    for (Pause pause;;) {
      auto bytes = get(host, invitation_of(host, seat_.rank));
      if (!bytes) return bytes.status();
      auto answer = decode_answer(*bytes);
      if (!answer) return answer.status();
      if (answer->to == nonce_) return connect(host, answer->welcome);
      const Ended ended = wait_through(until(pause.next()), [&](Nanos deadline) {
        const FutexWait woken = nothing_.wait(nothing_.sequence(), deadline);
        return woken == FutexWait::kSignal ? Waited::kSignal : Waited::kTimeout;
      });
      if (ended == Ended::kInterrupted) return interrupted();
      if (now() >= wait_.deadline) return absent(host);
    }
  }

  Result<Ref<CallPort>> connect(int host, const wire::Welcome& welcome) {
    meet::Invitation invitation;
    invitation.session = welcome.session;
    invitation.secret = meet::Secret(std::span<const uint8_t, meet::Secret::kSize>(welcome.secret));
    invitation.instance = welcome.instance;
    invitation.hello = welcome.hello;
    const wire::Hello ours = runtime_.hello();
    const route::Offer offer{wire::same_host(ours, welcome.hello),
                             wire::same_user(ours, welcome.hello),
                             {welcome.addresses.begin(), welcome.addresses.end()}};
    Ref<CallPort> port;
    const route::Found found = route::attempt(
        {route::candidates(runtime_.kinds()), {}, policy_}, offer,
        [&](std::string_view transport) { return runtime_.kind(transport)->why_not(); },
        [&](std::string_view, const std::string& address) -> Status {
          invitation.address = address;
          auto connected = meet::connect(runtime_, invitation, wait_.deadline);
          if (!connected) return connected.status();
          auto made =
              CallPort::create(runtime_, std::move(connected->transport),
                               std::move(connected->peer), runtime_.settings().max_message_bytes);
          if (!made) return made.status();
          port = std::move(*made);
          return {};
        });
    if (port) return port;
    std::string why = text({"rank ", host, " cannot be reached"});
    for (const route::Reason& reason : found.reasons)
      why += text({"; ", reason.transport, ": ", reason.why});
    if (!offer.same_host)
      why +=
          text({"; a rank is reached from other hosts at its ", kHost, ", by default ", kLoopback});
    return Status{found.final ? Code::kFailedPrecondition : Code::kUnavailable, why};
  }

  Runtime& runtime_;
  Store& store_;
  const Seat& seat_;
  const Wait& wait_;
  route::Policy policy_;
  wire::Nonce nonce_{};
  std::vector<std::optional<wire::Nonce>> answered_;  // by rank
  Event nothing_;                                     // for waits that only time ends
};

}  // namespace

Result<std::unique_ptr<Members>> join(Runtime& runtime, Store& store, const Seat& seat,
                                      const Wait& wait) {
  if (seat.size < 1 || seat.rank < 0 || seat.rank >= seat.size)
    return Status{Code::kInvalidArgument,
                  text({"rank ", seat.rank, " of a group of ", seat.size, " does not exist"})};
  if (seat.size == 1) return std::make_unique<Members>(0, std::vector<Ref<CallPort>>(1));
  return GroupEntry(runtime, store, seat, wait).run();
}

}  // namespace tw::collective
