// SPDX-License-Identifier: Apache-2.0
#include "collective/join.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "collective/share.h"
#include "collective/wire.h"
#include "process/all_settings.h"
#include "route/choice.h"

namespace tw::collective {
namespace {

std::string presence_of(int rank) { return text({"tensorwire/rank/", rank}); }
std::string invitation_of(int host, int guest) {
  return text({"tensorwire/invitation/", host, "/", guest});
}

// That this process may have; all that there are: not known.
uint64_t most_descriptors() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}

// Whether ranks may share memory, by what they say of themselves. The same for both.
bool may_share_memory(Runtime& runtime, const RankAddress& a, const RankAddress& b) {
  if (!wire::same_host(a.hello, b.hello) || !wire::same_user(a.hello, b.hello)) return false;
  const auto local = [&](const RankAddress& address, std::string_view name) {
    return std::ranges::any_of(address.places, [&](const std::string& place) {
      return place.starts_with(name) && place.substr(name.size()).starts_with(':');
    });
  };
  return std::ranges::any_of(runtime.kinds(), [&](const std::unique_ptr<Kind>& kind) {
    return kind->socket() == Kind::Socket::kUnix && local(a, kind->name()) &&
           local(b, kind->name());
  });
}

std::vector<std::byte> encode_address(const RankAddress& address) {
  wire::Welcome welcome;  // for nobody: without a secret
  welcome.hello = address.hello;
  welcome.instance = address.instance;
  welcome.addresses.assign(address.places.begin(), address.places.end());
  std::vector<std::byte> bytes(wire::welcome_size(welcome));
  wire::encode_welcome(bytes.data(), welcome);
  return bytes;
}

RankAddress address_of(const wire::Welcome& welcome) {
  return {welcome.hello, welcome.instance, {welcome.addresses.begin(), welcome.addresses.end()}};
}

// One rank's way into the group.
class GroupEntry {
 public:
  GroupEntry(Runtime& runtime, Poller& poller, Store& store, const Seat& seat, const Wait& wait)
      : runtime_(runtime),
        store_(store),
        seat_(seat),
        wait_(wait),
        roster_(make_ref<Roster>(runtime, &poller, seat.rank, seat.size)),
        members_(std::make_unique<Members>(roster_)),
        answered_(static_cast<size_t>(seat.size)),
        followed_(static_cast<size_t>(seat.size)) {}

  // The others are told why one gives up.
  Result<std::unique_ptr<Members>> run() {
    const Status status = meet();
    if (status.ok()) return std::move(members_);
    members_->fail(status);
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
    auto policy = route::choose(runtime_.kinds());
    if (!policy) return policy.status();
    auto named = read_anew(runtime_.kinds(), kGroupHost);
    if (!named) return named.status();
    const std::string at = !seat_.host.empty() ? seat_.host : named->empty() ? kLoopback : *named;
    if (Status status = roster_->open(std::move(*policy), at); !status.ok()) return status;

    for (wire::Nonce* const random : {&nonce_, &key_})
      if (Status status = fill_random(*random); !status.ok()) return status;
    const auto presence =
        encode_presence({runtime_.hello(), nonce_, static_cast<uint32_t>(seat_.size)});
    if (Status status = store_.set(presence_of(seat_.rank), presence); !status.ok()) return status;
    for (int guest = seat_.rank + 1; guest < seat_.size; ++guest)
      if (meets(guest))
        if (Status status = invite(guest); !status.ok()) return status;
    for (int host = 0; host < seat_.rank; ++host)
      if (meets(host))
        if (Status status = visit(host); !status.ok()) return status;
    if (Status status = receive(); !status.ok()) return status;
    if (seat_.size > kAllLinks) return introduce();
    roster_->settle();
    return {};
  }

  bool meets(int rank) const { return meet_in_store(seat_.rank, rank, seat_.size); }

  // All learn where each is; those that may share memory make links.
  Status introduce() {
    const RankAddress own{runtime_.hello(), runtime_.instance(), roster_->entrance().places()};
    auto all = share(*members_, kAddressesTag, encode_address(own), wait_);
    if (!all) return all.status();
    std::vector<RankAddress> addresses;
    for (const std::vector<std::byte>& bytes : *all) {
      const auto welcome = wire::decode_welcome(bytes);
      if (!welcome) return welcome.status();
      addresses.push_back(address_of(*welcome));
    }
    std::vector<int> near;
    for (int rank = 0; rank < seat_.size; ++rank)
      if (rank != seat_.rank && !meets(rank) &&
          may_share_memory(runtime_, own, addresses[static_cast<size_t>(rank)]))
        near.push_back(rank);
    roster_->settle(key_, std::move(addresses));
    // From here on all are admitted by all.
    if (auto ready = share(*members_, kAddressesTag, {}, wait_); !ready) return ready.status();
    for (const int rank : near)
      if (rank < seat_.rank)
        if (auto made = members_->reach(rank, wait_); !made) return made.status();
    Status come = wait_in_slices(*members_, wait_, [&](Nanos until) {
      for (;;) {
        const uint32_t seen = roster_->changed().sequence();
        if (std::ranges::all_of(near, [&](int rank) { return members_->linked(rank); }))
          return true;
        if (roster_->changed().wait(seen, until) != FutexWait::kWoken) return false;
      }
    });
    if (come.code() != Code::kDeadlineExceeded) return come;
    const auto missing =
        std::ranges::find_if(near, [&](int rank) { return !members_->linked(rank); });
    return absent(missing == near.end() ? 0 : *missing);
  }

  // Waits for the ranks above.
  Status receive() {
    for (Pause pause;;) {
      const uint32_t seen = roster_->changed().sequence();
      int missing = seat_.rank + 1;
      while (missing < seat_.size && (!meets(missing) || members_->linked(missing))) ++missing;
      if (missing == seat_.size) return {};
      if (Status status = all_there(); !status.ok()) return status;
      const Ended ended = await_change(seen, pause.next());
      if (ended == Ended::kInterrupted) return interrupted();
      if (ended == Ended::kDone) continue;
      if (now() >= wait_.deadline) return absent(missing);
      if (Status status = still_this_rank(); !status.ok()) return status;
      for (int guest = missing; guest < seat_.size; ++guest) {
        if (!meets(guest) || members_->linked(guest)) continue;
        if (Status status = invite(guest); !status.ok()) return status;
      }
    }
  }

  // Until a link has come, or something has become known of a rank.
  Ended await_change(uint32_t seen, Nanos pause) {
    Event& changed = roster_->changed();
    return wait_through(until(pause), [&](Nanos slice) {
      for (;;) {
        if (changed.sequence() != seen) return Waited::kDone;
        const FutexWait woken = changed.wait(seen, slice);
        if (woken == FutexWait::kTimeout) return Waited::kTimeout;
        if (woken == FutexWait::kSignal) return Waited::kSignal;
      }
    });
  }

  // UNAVAILABLE: one that has come is gone, or has given up.
  Status all_there() const {
    if (Status status = members_->standing(); !status.ok()) return status;
    for (int rank = 0; rank < seat_.size; ++rank) {
      if (!members_->linked(rank) || members_->link(rank).alive()) continue;
      return {Code::kUnavailable,
              text({members_->name(rank), " is gone: ", members_->link(rank).death().details()})};
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
    if (Status status = all_there(); !status.ok()) return status;
    if (Status status = still_this_rank(); !status.ok()) return status;
    if (seat_.rank == 0 || followed_[0]) return {};
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
  // A rank that has come itself may wait for one that has not: that one is told.
  Status absent(int rank) {
    const auto said = last_said(rank);
    for (int other = 0; said && other < seat_.size; ++other)
      if (other != rank && other != seat_.rank && !last_said(other)) return never_came(other);
    if (!said) return never_came(rank);
    std::string why =
        text({"rank ", rank, " has not come to the group of ", seat_.size, " in time"});
    if (said->size != static_cast<uint32_t>(seat_.size))
      why += text({"; the one that came as rank ", rank, " was of a group of ", said->size});
    return {Code::kDeadlineExceeded, why};
  }
  Status never_came(int rank) const {
    return {Code::kDeadlineExceeded,
            text({"rank ", rank, " has not come to the group of ", seat_.size,
                  " in time; see whether its process runs, and has the same store"})};
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
  Status invite(int guest) {
    auto said = get(guest, presence_of(guest));
    if (!said) return said.status();
    auto presence = decode_presence(*said);
    if (!presence) return presence.status();
    std::optional<wire::Nonce>& answered = answered_[static_cast<size_t>(guest)];
    if (answered == presence->nonce) return {};
    const Nanos left = wait_.deadline == kForever ? meet::Admissions::kMaxTtl
                                                  : std::max<Nanos>(wait_.deadline - now(), 1);
    auto pass = roster_->entrance().admit(guest, presence->hello, left);
    if (!pass) return pass.status();
    Answer answer;
    answer.to = presence->nonce;
    if (seat_.rank == 0) answer.key = key_;
    answer.size = static_cast<uint32_t>(seat_.size);
    wire::Welcome& welcome = answer.welcome;
    welcome.hello = runtime_.hello();
    welcome.instance = runtime_.instance();
    welcome.session = pass->session;
    std::ranges::copy(pass->secret.bytes(), welcome.secret.begin());
    const std::vector<std::string>& places = roster_->entrance().places();
    welcome.addresses.assign(places.begin(), places.end());
    if (Status status = wire::check_addresses(welcome.addresses); !status.ok()) return status;
    answered = presence->nonce;
    return store_.set(invitation_of(seat_.rank, guest), encode_answer(answer));
  }

  Status visit(int host) {
    for (Pause pause; !followed_[static_cast<size_t>(host)];) {
      auto bytes = get(host, invitation_of(host, seat_.rank));
      if (!bytes) return bytes.status();
      // Whoever looked around has found it, and an invitation serves once.
      if (followed_[static_cast<size_t>(host)]) break;
      if (Status status = follow(host, *bytes); !status.ok()) return status;
      if (followed_[static_cast<size_t>(host)]) break;
      const Ended ended = await_change(roster_->changed().sequence(), pause.next());
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
    const wire::Welcome& welcome = answer->welcome;
    const Pass pass{welcome.session,
                    meet::Secret(std::span<const uint8_t, meet::Secret::kSize>(welcome.secret))};
    if (Status status = roster_->connect(host, address_of(welcome), pass, wait_); !status.ok())
      return status;
    followed_[static_cast<size_t>(host)] = true;
    if (host == 0) key_ = answer->key;
    if (answer->size == static_cast<uint32_t>(seat_.size)) return {};
    return {Code::kFailedPrecondition,
            text({"rank ", host, " has come to a group of ", answer->size, ", and rank ",
                  seat_.rank, " to one of ", seat_.size})};
  }

  Runtime& runtime_;
  Store& store_;
  const Seat& seat_;
  const Wait& wait_;
  wire::Nonce nonce_{}, key_{};
  const Ref<Roster> roster_;
  std::unique_ptr<Members> members_;
  std::vector<std::optional<wire::Nonce>> answered_;  // by rank
  std::vector<bool> followed_;                        // by rank: it was connected to
};

}  // namespace

// On a circle, neighbours at distances that are powers of two are what rings, trees, recursive
// doubling and barriers send to.
bool meet_in_store(int a, int b, int size) {
  if (a == b) return false;
  const auto ahead = static_cast<unsigned>(std::abs(a - b));
  return size <= kAllLinks || a == 0 || b == 0 || std::has_single_bit(ahead) ||
         std::has_single_bit(static_cast<unsigned>(size) - ahead);
}

Result<std::unique_ptr<Members>> join(Runtime& runtime, Store& store, const Seat& seat,
                                      const Wait& wait) {
  if (seat.size < 1 || seat.rank < 0 || seat.rank >= seat.size)
    return Status{Code::kInvalidArgument,
                  text({"rank ", seat.rank, " of a group of ", seat.size, " does not exist"})};
  if (seat.size == 1) return std::make_unique<Members>(make_ref<Roster>(runtime, nullptr, 0, 1));
  auto poller = runtime.background();
  if (!poller) return poller.status();
  return GroupEntry(runtime, **poller, store, seat, wait).run();
}

}  // namespace tw::collective
