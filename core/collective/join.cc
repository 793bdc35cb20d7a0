// SPDX-License-Identifier: Apache-2.0
#include "collective/join.h"

#include <sys/resource.h>

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

// That this process may have; all that there are: not known.
uint64_t most_descriptors() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
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

  // Until one that was not there before has come.
  Ended wait(uint32_t seen, const Wait& wait) {
    return wait_through(wait, [&](Nanos until) {
      for (;;) {
        if (came_.sequence() != seen) return Waited::kDone;
        const FutexWait woken = came_.wait(seen, until);
        if (woken == FutexWait::kTimeout) return Waited::kTimeout;
        if (woken == FutexWait::kSignal) return Waited::kSignal;
      }
    });
  }
  uint32_t sequence() const { return came_.sequence(); }
  // Null: it has not come since this was asked last.
  Ref<CallPort> take(size_t rank) {
    const MutexLock lock(mutex_);
    return std::move(ports_[rank]);
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
        arrivals_(make_ref<Arrivals>(runtime, seat.size)),
        answered_(static_cast<size_t>(seat.size)),
        ports_(static_cast<size_t>(seat.size)) {}

  // The others are told why one gives up.
  Result<std::unique_ptr<Members>> run() {
    const Status status = meet();
    auto members = std::make_unique<Members>(seat_.rank, std::move(ports_));
    if (status.ok()) return members;
    members->fail(status);
    const uint64_t wants = kDescriptors * static_cast<uint64_t>(seat_.size - 1);
    if (wants < most_descriptors()) return status;
    return Status{
        status.code(),
        text({status.details(), " (the links of a group of ", seat_.size, " take up to ", wants,
              " descriptors; this process may have ", most_descriptors(), ": see ulimit -n)"})};
  }

 private:
  // What a link takes (docs/decisions/0034-links-of-a-group.md).
  static constexpr uint64_t kDescriptors = 5;

  // Between looks at the store and at who has come.
  class Pause {
   public:
    Nanos next() { return std::exchange(next_, std::min(2 * next_, kLongest)); }

   private:
    Nanos next_ = 5 * kMillisecond;
  };
  static constexpr Nanos kLongest = 500 * kMillisecond;

  Status meet() {
    auto poller = runtime_.background();
    if (!poller) return poller.status();
    auto policy = route::choose(runtime_.kinds());
    if (!policy) return policy.status();
    policy_ = std::move(*policy);
    auto named = read_anew(runtime_.kinds(), kHost);
    if (!named) return named.status();
    const std::string at = !seat_.host.empty() ? seat_.host : named->empty() ? kLoopback : *named;
    Reception reception(runtime_, **poller, arrivals_);
    auto addresses = reception.open(runtime_, policy_, at);
    if (!addresses) return addresses.status();

    if (Status status = fill_random(nonce_); !status.ok()) return status;
    const auto presence =
        encode_presence({runtime_.hello(), nonce_, static_cast<uint32_t>(seat_.size)});
    if (Status status = store_.set(presence_of(seat_.rank), presence); !status.ok()) return status;
    for (int guest = seat_.rank + 1; guest < seat_.size; ++guest)
      if (Status status = invite(reception.listener(), *addresses, guest); !status.ok())
        return status;
    for (int host = 0; host < seat_.rank; ++host)
      if (Status status = visit(host); !status.ok()) return status;
    return receive(reception.listener(), *addresses);
  }

  // Waits for the ranks above.
  Status receive(meet::Listener& listener, std::span<const std::string> addresses) {
    for (Pause pause;;) {
      const uint32_t seen = arrivals_->sequence();
      take_arrivals();
      const auto missing = std::ranges::find_if(ports_.begin() + seat_.rank + 1, ports_.end(),
                                                [](const Ref<CallPort>& port) { return !port; });
      if (missing == ports_.end()) return {};
      if (Status status = all_there(); !status.ok()) return status;
      const Ended ended = arrivals_->wait(seen, until(pause.next()));
      if (ended == Ended::kInterrupted) return interrupted();
      if (ended == Ended::kDone) continue;
      if (now() >= wait_.deadline) return absent(static_cast<int>(missing - ports_.begin()));
      if (Status status = still_this_rank(); !status.ok()) return status;
      for (int guest = seat_.rank + 1; guest < seat_.size; ++guest) {
        if (ports_[static_cast<size_t>(guest)]) continue;
        if (Status status = invite(listener, addresses, guest); !status.ok()) return status;
      }
    }
  }

  void take_arrivals() {
    for (size_t rank = 0; rank < ports_.size(); ++rank)
      if (auto port = arrivals_->take(rank)) ports_[rank] = std::move(port);
  }
  // UNAVAILABLE: one that has come is gone.
  Status all_there() const {
    for (size_t rank = 0; rank < ports_.size(); ++rank) {
      if (!ports_[rank] || ports_[rank]->link().alive()) continue;
      const Link& link = ports_[rank]->link();
      return {Code::kUnavailable, text({"rank ", rank, " (", link.peer().name(),
                                        ") is gone: ", link.death().details()})};
    }
    return {};
  }
  // ALREADY_EXISTS: another process has come as this rank.
  Status still_this_rank() {
    const auto own = last_said(seat_.rank);
    if (!own || own->nonce == nonce_) return {};
    return {Code::kAlreadyExists, text({"another process has come as rank ", seat_.rank, ", too"})};
  }

  // While a rank is waited for: whether something has come up. Rank 0 answers all, so that who was
  // told another size learns that there.
  Status look_around() {
    take_arrivals();
    if (Status status = all_there(); !status.ok()) return status;
    if (Status status = still_this_rank(); !status.ok()) return status;
    if (seat_.rank == 0 || ports_[0]) return {};
    const auto bytes = store_.get(invitation_of(0, seat_.rank), {now(), nullptr, nullptr});
    return bytes ? follow(0, *bytes) : Status();
  }

  // What the store has of a rank, without a wait.
  std::optional<Presence> last_said(int rank) {
    const auto bytes = store_.get(presence_of(rank), {now(), nullptr, nullptr});
    if (!bytes) return std::nullopt;
    auto presence = decode_presence(*bytes);
    return presence ? std::optional(*presence) : std::nullopt;
  }

  // This rank's wait, but no longer than that.
  Wait until(Nanos pause) const {
    return {std::min(wait_.deadline, now() + pause), wait_.interrupted, wait_.context};
  }
  static Status interrupted() { return {Code::kCancelled, "the wait was interrupted"}; }
  Status absent(int rank) {
    std::string why =
        text({"rank ", rank, " has not come to the group of ", seat_.size, " in time"});
    const auto said = last_said(rank);
    if (said && said->size != static_cast<uint32_t>(seat_.size))
      why += text({"; the one that came as rank ", rank, " was of a group of ", said->size});
    return {Code::kDeadlineExceeded, why};
  }

  // What a rank has put into the store.
  Result<std::vector<std::byte>> get(int rank, const std::string& key) {
    for (;;) {
      auto value = store_.get(key, until(kLongest));
      if (value || value.status().code() != Code::kDeadlineExceeded) return value;
      if (now() >= wait_.deadline) return absent(rank);
      if (Status status = look_around(); !status.ok()) return status;
    }
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
    // One for each way that the guest may try: what came to nothing there may yet be under way
    // here.
    auto ticket = listener.admit(presence->hello, static_cast<int>(addresses.size()),
                                 std::min(left, meet::Admissions::kMaxTtl));
    if (!ticket) return ticket.status();
    listener.introduce(ticket->session, {}, std::to_string(guest));
    Answer answer;
    answer.to = presence->nonce;
    answer.size = static_cast<uint32_t>(seat_.size);
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

  Status visit(int host) {
    for (Pause pause; !ports_[static_cast<size_t>(host)];) {
      auto bytes = get(host, invitation_of(host, seat_.rank));
      if (!bytes) return bytes.status();
      // Whoever looked around has found it, and an invitation serves once.
      if (ports_[static_cast<size_t>(host)]) break;
      if (Status status = follow(host, *bytes); !status.ok()) return status;
      if (ports_[static_cast<size_t>(host)]) break;
      const Ended ended = arrivals_->wait(arrivals_->sequence(), until(pause.next()));
      if (ended == Ended::kInterrupted) return interrupted();
      if (now() >= wait_.deadline) return absent(host);
      if (Status status = look_around(); !status.ok()) return status;
    }
    return {};
  }

  // Connects to a rank that has answered, if it has answered this process. FAILED_PRECONDITION: its
  // group has another size.
  Status follow(int host, std::span<const std::byte> bytes) {
    auto answer = decode_answer(bytes);
    if (!answer) return answer.status();
    if (answer->to != nonce_) return {};
    auto port = connect(host, answer->welcome);
    if (!port) return port.status();
    ports_[static_cast<size_t>(host)] = std::move(*port);
    if (answer->size == static_cast<uint32_t>(seat_.size)) return {};
    return {Code::kFailedPrecondition,
            text({"rank ", host, " has come to a group of ", answer->size, ", and rank ",
                  seat_.rank, " to one of ", seat_.size})};
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
    const route::AttemptResult found = route::attempt(
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
  const Ref<Arrivals> arrivals_;
  std::vector<std::optional<wire::Nonce>> answered_;  // by rank
  std::vector<Ref<CallPort>> ports_;                  // by rank; null: not there yet
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
