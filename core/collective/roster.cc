// SPDX-License-Identifier: Apache-2.0
#include "collective/roster.h"

#include <algorithm>
#include <utility>

#include "base/shortage.h"
#include "base/text.h"

namespace tw::collective {
namespace {

// A look at whether a wait is worth while.
constexpr Nanos kSlice = 50 * kMillisecond;

// How long a rank that leaves waits for what the others have yet to take.
constexpr Nanos kFarewell = kSecond;

// What a peer takes is no event here: looked at again and again.
template <class Done>
void drive_until(Link& link, Done&& done, Nanos deadline) {
  Event event;
  while (!done() && now() < deadline)
    (void)link.wait(event, done, std::min(deadline, now() + kMillisecond));
}

void flush(Link& link, Nanos deadline) {
  link.flush();
  drive_until(link, [&] { return link.backlog() == 0 || link.closed(); }, deadline);
}

// This process may be about to end, and then nobody sees to the last words.
void see_off(Link& link, Nanos deadline) {
  drive_until(link, [&] { return link.lost() || !link.undelivered(); }, deadline);
}

// By its own link: that in the roster may be another one, or gone.
std::string name_by(int rank, const CallPort& port) {
  return text({"rank ", rank, " (", port.link().peer().name(), ")"});
}

// How long a connection may take, whatever waits for it.
constexpr Nanos kPatience = kSecond;
// ... which may be lost before it has become a link.
constexpr int kAttempts = 3;

Status not_needed() { return {Code::kCancelled, "this process does not need the link"}; }

}  // namespace

Roster::Roster(Runtime& runtime, Poller* poller, int rank, int size)
    : runtime_(runtime),
      poller_(poller),
      rank_(rank),
      ports_(static_cast<size_t>(size)),
      fates_(static_cast<size_t>(size)),
      hosts_(runtime.settings().group_silence),
      agreement_(size),
      owned_(static_cast<size_t>(size)),
      connecting_(static_cast<size_t>(size)),
      offered_(static_cast<size_t>(size)),
      guests_(static_cast<size_t>(size)),
      whys_(static_cast<size_t>(size)),
      due_(static_cast<size_t>(size)),
      told_left_(static_cast<size_t>(size)) {}

size_t Roster::links() const {
  return static_cast<size_t>(std::ranges::count_if(
      ports_, [](const std::atomic<CallPort*>& port) { return port.load() != nullptr; }));
}

std::string Roster::name(int rank) const {
  if (rank == rank_) return text({"rank ", rank, " (this process)"});
  const CallPort* const there = port(rank);
  return there ? name_by(rank, *there) : text({"rank ", rank});
}

// ---- links ----

Status Roster::open(route::Policy policy, const std::string& host) {
  policy_ = std::move(policy);
  entrance_ = std::make_unique<Entrance>(
      runtime_, *poller_, [self = Ref<Roster>::share(this)](meet::Connected connected) {
        self->arrived(std::move(connected));
      });
  return entrance_->open(policy_, host);
}

Result<Ref<MemberPort>> Roster::make_port(int rank, meet::Connected connected, Link::Role role) {
  const auto link =
      make_ref<Link>(runtime_, *poller_, std::move(connected.transport), std::move(connected.peer),
                     runtime_.settings().max_message_bytes, role);
  auto port = Ref<MemberPort>::share(&link->attach<MemberPort>(Ref<Roster>::share(this), rank));
  if (Status status = link->start(); !status.ok()) return status;
  return port;
}

void Roster::place(int rank, const Ref<MemberPort>& port) {
  const auto at = static_cast<size_t>(rank);
  if (owned_[at]) former_.push_back(owned_[at]);
  owned_[at] = port;
  ports_[at].store(port.get(), std::memory_order_release);
}

void Roster::placed(int rank, CallPort& port) noexcept {
  bool settled = false;
  {
    const MutexLock lock(mutex_);
    settled = membership_ == Membership::kSettled;
    (void)has_memory_for([&] {
      mutex_.held();
      for (const Ref<EventQueue>& queue : watching_) queue->push(0);
    });
  }
  if (settled) port.link().surely([&] { hosts_.add(port.link()); });
  changed_.notify();
  if (!port.link().alive()) ended(rank, port);
}

// Something that the other rank may take, or have taken.
bool Roster::offers(int rank) const {
  const Ref<MemberPort>& port = offered_[static_cast<size_t>(rank)].port;
  return port && port->link().alive();
}

// By the background. While ranks join, who comes is taken.
void Roster::arrived(meet::Connected connected) {
  const int rank = std::stoi(connected.peer.agent);
  auto port = make_port(rank, std::move(connected), Link::Role::kServer);
  if (!port) return;  // it is lost, which its other end sees
  const auto at = static_cast<size_t>(rank);
  Ref<MemberPort> over;
  bool taken = false;
  {
    const MutexLock lock(mutex_);
    if (membership_ == Membership::kJoining) {
      place(rank, *port);
      taken = true;
    } else if (membership_ == Membership::kLeft) {
      over = *port;
    } else if (owned_[at].get() != port->get() &&
               guests_[at].port.get() != port->get()) {  // it has not asked yet
      over = std::exchange(guests_[at], {*port, std::nullopt}).port;
    }
  }
  if (taken) placed(rank, **port);
  if (over) over->link().close(not_needed());
}

// By whoever drives the link of another rank, which is ready to use it.
void Roster::asked(int rank, MemberPort& port, uint64_t question) {
  const auto at = static_cast<size_t>(rank);
  const auto self = Ref<MemberPort>::share(&port);
  GuestLink before;
  bool taken = false;
  {
    const MutexLock lock(mutex_);
    if (membership_ == Membership::kSettled) {
      before = std::exchange(guests_[at], {});
      if (!owned_[at] && rank < rank_ && offers(rank)) {
        guests_[at] = {self, question};
        return;
      }
      taken = !owned_[at];
      if (taken) place(rank, self);
    }
  }
  if (taken) placed(rank, port);
  port.say_whether(question, taken);
}

// By whoever drives the link. An offer that is taken is used, whether a wait is there or not.
void Roster::answered(int rank, const MemberPort& port) noexcept {
  const auto at = static_cast<size_t>(rank);
  OfferedLink offered;
  {
    const MutexLock lock(mutex_);
    if (membership_ != Membership::kSettled || owned_[at]) return;
    const auto& [its, question] = offered_[at];
    if (its.get() != &port || !question || !question->ended() ||
        question->outcome().code != Code::kOk)
      return;
    place(rank, its);
    offered = std::exchange(offered_[at], {});
  }
  placed(rank, *offered.port);
  tell_soon();  // a guest waits for the answer
}

// What a rank has offered meanwhile is used if nothing else has come about.
void Roster::look_at_guest(int rank) noexcept {
  const auto at = static_cast<size_t>(rank);
  GuestLink guest;
  bool taken = false;
  {
    const MutexLock lock(mutex_);
    if (membership_ != Membership::kSettled) return;
    const GuestLink& there = guests_[at];
    if (!there.port) return;
    const bool alive = there.port->link().alive();
    if (alive && (!there.question || offers(rank))) return;
    guest = std::exchange(guests_[at], {});
    taken = alive && !owned_[at];
    if (taken) place(rank, guest.port);
  }
  if (taken) placed(rank, *guest.port);
  if (guest.question) guest.port->say_whether(*guest.question, taken);
}

Status Roster::connect(int rank, const RankAddress& address, const Pass& pass, const Wait& wait) {
  auto connected = enter(runtime_, policy_, rank, address, pass, wait);
  if (!connected) return connected.status();
  auto port = make_port(rank, std::move(*connected), Link::Role::kClient);
  if (!port) return port.status();
  {
    const MutexLock lock(mutex_);
    place(rank, *port);
  }
  placed(rank, **port);
  return {};
}

void Roster::settle() {
  settle({}, {});
  entrance_.reset();
}

void Roster::settle(const wire::Nonce& key, std::vector<RankAddress> addresses) {
  key_ = key;
  addresses_ = std::move(addresses);
  for (int guest = 0; guest < static_cast<int>(addresses_.size()); ++guest)
    if (guest != rank_ && !port(guest))
      entrance_->admit(guest, addresses_[static_cast<size_t>(guest)].hello,
                       pass_of(key_, rank_, guest));
  {
    const MutexLock lock(mutex_);
    membership_ = Membership::kSettled;
  }
  // Links that were made before stay from here on.
  for (int other = 0; other < size(); ++other) {
    CallPort* const there = port(other);
    if (!there) continue;
    hosts_.add(there->link());
    if (!there->link().alive()) ended(other, *there);
  }
}

void Roster::watch_links(const Ref<EventQueue>& queue) {
  const MutexLock lock(mutex_);
  watching_.push_back(queue);
}

void Roster::unwatch_links(const Ref<EventQueue>& queue) {
  const MutexLock lock(mutex_);
  std::erase_if(watching_, [&](const Ref<EventQueue>& each) { return each.get() == queue.get(); });
}

Status Roster::hindrance(int rank) const {
  if (failed_.load(std::memory_order_acquire))
    return {Code::kCancelled, "the group has been given up"};
  Status why = standing();
  return why.ok() ? standing(rank) : why;
}

Result<CallPort*> Roster::reach(int rank, const Wait& wait) {
  const auto at = static_cast<size_t>(rank);
  for (;;) {
    if (CallPort* const there = port(rank)) return there;
    if (Status why = hindrance(rank); !why.ok()) return why;
    const uint32_t seen = changed_.sequence();
    {
      const MutexLock lock(mutex_);
      if (!connecting_[at] && !owned_[at]) {
        connecting_[at] = true;
        break;
      }
    }
    // Another thread is at it.
    (void)changed_.wait(seen, std::min(wait.deadline, now() + kSlice));
    if (wait.interrupted && wait.interrupted(wait.context) != 0)
      return Status{Code::kCancelled, "the wait was interrupted"};
    if (now() >= wait.deadline && !port(rank))
      return Status{Code::kDeadlineExceeded,
                    text({"no link to ", name(rank), " has come about in time"})};
  }
  struct Attempt {
    Roster& roster;
    int rank;
    ~Attempt() { roster.end_attempt(rank); }
  };
  Status made;
  {
    const Attempt attempt{*this, rank};
    made = make_link(rank, wait);
  }
  if (CallPort* const there = port(rank)) return there;
  const Status why = hindrance(rank);
  return why.ok() ? made : why;
}

void Roster::end_attempt(int rank) noexcept {
  {
    const MutexLock lock(mutex_);
    connecting_[static_cast<size_t>(rank)] = false;
  }
  look_at_guest(rank);
  changed_.notify();
}

Status Roster::make_link(int rank, const Wait& wait) {
  struct Asked {
    Roster& roster;
    int rank;
    const Wait& wait;
  } asked{*this, rank, wait};
  const Wait attempt{wait.deadline,
                     [](void* context) -> int {
                       const Asked& about = *static_cast<const Asked*>(context);
                       const Wait& users = about.wait;
                       (void)has_memory_for([&about] { about.roster.look_at_hosts(); });
                       return about.roster.port(about.rank) ||
                              !about.roster.hindrance(about.rank).ok() ||
                              (users.interrupted && users.interrupted(users.context) != 0);
                     },
                     &asked};
  for (int i = 1;; ++i) {
    auto offered = offer(rank, attempt);
    if (!offered) {
      // Strangers may have pushed it out of an entrance.
      if (offered.status().code() == Code::kUnavailable && i < kAttempts) continue;
      return offered.status();
    }
    const auto answered = await_answer(rank, *offered, attempt);
    if (!answered) return answered.status();
    if (*answered) return {};
    if (i == kAttempts)
      return {Code::kUnavailable,
              text({name(rank), " takes no link: ", offered->question->outcome().details})};
  }
}

// The one of an earlier wait stands: its other end may have taken it. Before it asks it looks
// whether the other rank's own has been taken meanwhile.
Result<Roster::OfferedLink> Roster::offer(int rank, const Wait& wait) {
  const auto at = static_cast<size_t>(rank);
  {
    const MutexLock lock(mutex_);
    if (offered_[at].port) return offered_[at];
  }
  auto connected =
      enter(runtime_, policy_, rank, addresses_[at], pass_of(key_, rank, rank_),
            Wait{std::max(wait.deadline, now() + kPatience), wait.interrupted, wait.context});
  if (!connected && connected.status().code() == Code::kUnavailable && now() >= wait.deadline)
    return Status{Code::kDeadlineExceeded, connected.status().details()};
  if (!connected) return connected.status();
  auto port = make_port(rank, std::move(*connected), Link::Role::kClient);
  if (!port) return port.status();
  Result<Ref<ClientCall>> question = not_needed();
  bool needed = false;
  {
    const MutexLock lock(mutex_);
    needed = membership_ == Membership::kSettled && !owned_[at];
    if (needed) offered_[at].port = *port;
  }
  if (needed) question = (*port)->ask();
  if (question) {
    const MutexLock lock(mutex_);
    offered_[at].question = std::move(*question);
    return offered_[at];
  }
  if (needed) {
    const MutexLock lock(mutex_);
    offered_[at] = {};
  }
  (*port)->link().close(not_needed());
  return question.status();
}

// Until the other rank has taken the link, or its own one has come. False: it is lost. A wait that
// ends before leaves it for the next one.
Result<bool> Roster::await_answer(int rank, const OfferedLink& offered, const Wait& wait) {
  const auto at = static_cast<size_t>(rank);
  while (!port(rank) && !offered.question->ended()) {
    if (wait.interrupted(wait.context) != 0) {
      if (port(rank)) break;
      return Status{Code::kCancelled, "the wait was interrupted"};
    }
    if (now() >= wait.deadline)
      return Status{Code::kDeadlineExceeded,
                    text({"no link to ", name(rank), " has come about in time"})};
    (void)offered.question->wait_ended(std::min(wait.deadline, now() + kSlice));
  }
  bool taken = false, used = false;
  {
    const MutexLock lock(mutex_);
    taken = !owned_[at] && membership_ == Membership::kSettled && offered.question->ended() &&
            offered.question->outcome().code == Code::kOk;
    if (taken) place(rank, offered.port);
    used = owned_[at].get() == offered.port.get();
    offered_[at] = {};
  }
  if (taken) placed(rank, *offered.port);
  if (!used) offered.port->link().close(not_needed());
  return port(rank) != nullptr;
}

// ---- what is known of ranks ----

Status Roster::standing(int rank) const {
  if (rank == rank_ || fate(rank) == Fate::kThere) return {};
  const MutexLock lock(mutex_);
  return {Code::kUnavailable, whys_[static_cast<size_t>(rank)]};
}

Status Roster::standing() const {
  const int first = trouble_.load(std::memory_order_acquire);
  return first < 0 ? Status() : standing(first);
}

bool Roster::learn(int rank, Fate fate, std::string&& why) noexcept {
  const auto at = static_cast<size_t>(rank);
  const Fate known = fates_[at].load(std::memory_order_relaxed);
  if (membership_ == Membership::kLeft || rank == rank_ || known >= fate || known == Fate::kLeft)
    return false;
  const bool first = trouble_.load(std::memory_order_relaxed) < 0;
  // That a group has failed is told on once: all of its ranks will.
  if (fate == Fate::kLost || (fate == Fate::kFailed && first)) due_[at] = fate;
  if (known == Fate::kThere) whys_[at] = std::move(why);  // the first reason stays
  fates_[at].store(fate, std::memory_order_release);
  if (fate != Fate::kLeft && first) trouble_.store(rank, std::memory_order_release);
  return true;
}

void Roster::ended(int rank, const CallPort& port) noexcept {
  if (!home_.here()) return;
  const Link& link = port.link();
  const bool left = link.peer_closed();
  std::string why;
  if (!has_memory_for([&] {
        why = left ? text({name_by(rank, port), " has left the group",
                           "; all ranks make the same operations before one of them leaves"})
                   : text({name_by(rank, port), " is gone: ", link.death().details(),
                           "; see what its process has said, or make a group without it"});
      }))
    why = "a rank is gone";
  {
    const MutexLock lock(mutex_);
    if (membership_ != Membership::kSettled) return;
    const auto at = static_cast<size_t>(rank);
    // Of a link that is not used, only what is offered in its place is looked at.
    const bool news = this->port(rank) == &port
                          ? learn(rank, left ? Fate::kLeft : Fate::kLost, std::move(why))
                          : static_cast<bool>(guests_[at].port);
    if (!news) return;
  }
  changed_.notify();
  tell_soon();
}

void Roster::heard(int from, const CallPort& port, const Word& word) {
  std::string why(word.why);
  if (word.fate == Fate::kFailed && from == word.rank)
    why = text({name_by(from, port), " has failed: ", word.why});
  {
    const MutexLock lock(mutex_);
    // Links that ranks give up on their way into the group are replaced.
    if (membership_ == Membership::kJoining && this->port(from) && this->port(from) != &port)
      return;
    if (word.fate == Fate::kThere)
      asks_ = true;
    else if (!learn(word.rank, word.fate, std::move(why)))
      return;
  }
  changed_.notify();
  tell_soon();
}

void Roster::tell_soon() noexcept {
  if (!has_memory_for([&] { (void)poller_->add_timer(0, Ref<Watcher>::share(this)); }))
    untold_.store(true, std::memory_order_relaxed);
}

void Roster::on_timer() {
  if (!home_.here()) return;
  tell();
  for (int rank = 0; rank < size(); ++rank) look_at_guest(rank);
}

void Roster::tell() noexcept {
  if (!home_.here()) return;
  untold_.store(false, std::memory_order_relaxed);
  if (!has_memory_for([&] { say_all_due(); })) untold_.store(true, std::memory_order_relaxed);
}

void Roster::say_all_due() {
  std::vector<std::pair<Word, std::string>> words;
  std::vector<Ref<MemberPort>> to;
  const MutexLock turn(telling_);
  {
    const MutexLock lock(mutex_);
    if (membership_ == Membership::kLeft) return;
    const auto has_left = [&](size_t at) {
      mutex_.held();
      return asks_ && !told_left_[at] && fates_[at].load(std::memory_order_relaxed) == Fate::kLeft;
    };
    for (size_t at = 0; at < due_.size(); ++at) {
      const Fate fate = due_[at] != Fate::kThere ? due_[at] : Fate::kLeft;
      if (fate != Fate::kLeft || has_left(at))
        words.emplace_back(Word{static_cast<int>(at), fate, {}}, whys_[at]);
    }
    if (asks_ && !asked_) words.emplace_back(Word{rank_, Fate::kThere, {}}, std::string());
    if (words.empty()) return;
    for (size_t at = 0; at < owned_.size(); ++at)
      if (owned_[at] && fates_[at].load(std::memory_order_relaxed) < Fate::kLeft)
        to.push_back(owned_[at]);
    // No more memory is taken here: what is due has been said, or its link is lost.
    for (const auto& [word, why] : words) {
      const auto at = static_cast<size_t>(word.rank);
      if (word.fate == Fate::kLeft)
        told_left_[at] = true;
      else if (word.fate != Fate::kThere)
        due_[at] = Fate::kThere;
    }
    asked_ = asked_ || asks_;
  }
  for (const Ref<MemberPort>& port : to)
    for (auto& [word, why] : words) {
      word.why = why;
      port->say(word);
    }
}

void Roster::say_waits(const NumberedCall& call) {
  if (!home_.here()) return;
  std::vector<Ref<MemberPort>> to;
  {
    const MutexLock lock(mutex_);
    if (membership_ != Membership::kSettled) return;
    to = owned_;
  }
  for (const Ref<MemberPort>& port : to)
    if (port) port->say(call);
}

void Roster::ask_who_left() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(asks_, true)) return;
  }
  tell();
}

void Roster::fail(const Status& why) {
  if (!home_.here()) return;
  std::string said = why.details();
  {
    const MutexLock lock(mutex_);
    if (failed_.exchange(true) || membership_ == Membership::kLeft) return;
    const auto self = static_cast<size_t>(rank_);
    whys_[self] = std::move(said);
    fates_[self].store(Fate::kFailed, std::memory_order_release);
    due_[self] = Fate::kFailed;
  }
  changed_.notify();
  tell();
}

void Roster::leave() {
  if (!home_.here()) return;
  {
    // Ranks that regroup may have lost all others that know who has left.
    const MutexLock turn(telling_);
    const MutexLock lock(mutex_);
    if (trouble_.load(std::memory_order_relaxed) >= 0 || failed_.load()) asks_ = asked_ = true;
  }
  tell();
  std::vector<Ref<MemberPort>> all;
  {
    const MutexLock lock(mutex_);
    membership_ = Membership::kLeft;
    all = owned_;
    all.insert(all.end(), former_.begin(), former_.end());
    for (const GuestLink& guest : guests_) all.push_back(guest.port);
    for (const OfferedLink& offered : offered_) all.push_back(offered.port);
  }
  entrance_.reset();
  std::erase_if(all, [](const Ref<MemberPort>& port) { return !port; });
  const Nanos deadline = now() + kFarewell;
  for (const Ref<MemberPort>& port : all)
    port->link().surely([&] {
      flush(port->link(), deadline);
      port->link().close({Code::kCancelled, "this process has left the group"});
    });
  for (const Ref<MemberPort>& port : all)
    port->link().surely([&] { see_off(port->link(), deadline); });
  // They refer to the roster.
  std::vector<Ref<MemberPort>> owned, former;
  std::vector<GuestLink> guests;
  std::vector<OfferedLink> offered;
  const MutexLock lock(mutex_);
  owned.swap(owned_);
  former.swap(former_);
  guests.swap(guests_);
  offered.swap(offered_);
}

}  // namespace tw::collective
