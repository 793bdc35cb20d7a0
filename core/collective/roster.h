// SPDX-License-Identifier: Apache-2.0
// The links of a rank to the others of its group, and what it knows of them.
//
// In a large group two ranks get a link when one of them first has something for the other. Who has
// connected asks over the link whether it is taken, and uses it once that is so: an end that has
// given up before is missed by nobody. Both may ask at once, and then one link has to be the one
// that both use: the higher rank's. A rank takes a higher one's at once; that of a lower one, while
// it has asked itself, only when that has come to nothing.
//
// What becomes of a rank its own links tell, at once. Ranks that have no link with it are told by
// those that have: each tells all that it has links with, once, and they tell on.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "call/client.h"
#include "collective/entrance.h"
#include "collective/host_watch.h"
#include "collective/member_port.h"
#include "collective/wire.h"
#include "engine/event.h"
#include "engine/event_queue.h"

namespace tw::collective {

// Thread-safe.
class Roster final : public PortOwner {
 public:
  // `poller`: null for a group of one.
  Roster(Runtime& runtime, Poller* poller, int rank, int size);

  int rank() const { return rank_; }
  int size() const override { return static_cast<int>(ports_.size()); }
  // Null: there is no link, or it is this rank.
  CallPort* port(int rank) const {
    return ports_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  size_t links() const;

  // ---- while ranks join ----

  // As Entrance::open().
  Status open(route::Policy policy, const std::string& host);
  Entrance& entrance() { return *entrance_; }
  // Connects to another rank, with the pass that it has given.
  Status connect(int rank, const RankAddress& address, const Pass& pass, const Wait& wait);
  // Grows with each link, and with all that becomes known of a rank.
  Event& changed() { return changed_; }
  // All ranks are there, and no other links are made.
  void settle();
  // ... others are made when they are wanted. `key`: what only the group knows; `addresses`: by
  // rank. Who has no link yet is admitted.
  void settle(const wire::Nonce& key, std::vector<RankAddress> addresses);

  // ---- then ----

  // A token goes there with each new link, or none for want of memory.
  void watch_links(const Ref<EventQueue>& queue);
  void unwatch_links(const Ref<EventQueue>& queue);
  // A link to another rank, which is made where there is none. UNAVAILABLE, FAILED_PRECONDITION: it
  // cannot be; the text names the rank. DEADLINE_EXCEEDED: perhaps a second late, so that waits
  // which are shorter than a connection takes come to one, too. CANCELLED: interrupted, or the
  // group has been given up.
  Result<CallPort*> reach(int rank, const Wait& wait);

  // What is known of a rank, by its own links or by others; why, where it is not there.
  Fate fate(int rank) const {
    return fates_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  Status standing(int rank) const;
  // That of all, but for those that have left in good order.
  Status standing() const;
  // Has all ranks say who has left, too, which is told otherwise only once a group has failed.
  void ask_who_left();
  // The others are told that this rank has failed, and a new link is not waited for any more.
  void fail(const Status& why);
  // Leaves; no member is used afterwards.
  void leave();
  // By whoever waits: see HostWatch.
  void look_at_hosts() {
    if (untold_.load(std::memory_order_relaxed)) on_timer();
    hosts_.look();
  }
  // Tells all that there are links with in which operation this rank waits.
  void say_waits(const NumberedCall& call);
  Agreement& agreement() { return agreement_; }
  // For error texts: rank 3 (ipv4:10.0.0.7:4242), rank 1 (pid 4711).
  std::string name(int rank) const;

  void ended(int rank, const CallPort& port) noexcept override;
  void heard(int from, const CallPort& port, const Word& word) override;
  void waits(int rank, const NumberedCall& call) override { agreement_.heard(rank, call); }
  void asked(int rank, MemberPort& port, uint64_t question) override;
  void answered(int rank, const MemberPort& port) noexcept override;

 private:
  // A link of this rank's that the other one has yet to take.
  struct OfferedLink {
    Ref<MemberPort> port;
    Ref<ClientCall> question;  // null: it is about to be asked
  };
  // One of another rank's that is not taken.
  struct GuestLink {
    Ref<MemberPort> port;
    std::optional<uint64_t> question;  // its stream, which has yet to be answered
  };
  enum class Membership : uint8_t { kJoining, kSettled, kLeft };

  Result<Ref<MemberPort>> make_port(int rank, meet::Connected connected, Link::Role role);
  void arrived(meet::Connected connected);
  void place(int rank, const Ref<MemberPort>& port) TW_REQUIRES(mutex_);
  void placed(int rank, CallPort& port) noexcept;
  bool offers(int rank) const TW_REQUIRES(mutex_);
  void look_at_guest(int rank) noexcept;
  void end_attempt(int rank) noexcept;
  Status make_link(int rank, const Wait& wait);
  Result<OfferedLink> offer(int rank, const Wait& wait);
  Result<bool> await_answer(int rank, const OfferedLink& offered, const Wait& wait);
  // Why no link is made any more; ok: it may be.
  Status hindrance(int rank) const;

  bool learn(int rank, Fate fate, std::string&& why) noexcept TW_REQUIRES(mutex_);
  void tell_soon() noexcept;
  void tell() noexcept;
  void say_all_due();
  void on_event(uint32_t, uint32_t) override {}
  void on_timer() override;

  Runtime& runtime_;
  Poller* const poller_;
  const int rank_;
  const Birthplace home_;
  std::unique_ptr<Entrance> entrance_;
  route::Policy policy_;
  wire::Nonce key_{};                   // written by settle()
  std::vector<RankAddress> addresses_;  // likewise
  std::vector<std::atomic<CallPort*>> ports_;
  std::vector<std::atomic<Fate>> fates_;
  std::atomic<int> trouble_{-1};     // the first rank that is gone, or has failed; -1: none
  std::atomic<bool> untold_{false};  // for want of memory: whoever waits does what is due
  std::atomic<bool> failed_{false};
  Event changed_;
  HostWatch hosts_;
  Agreement agreement_;

  Mutex telling_;        // held until what is due has been said; taken before all others
  mutable Mutex mutex_;  // guards what follows; only those of queues are taken inside
  Membership membership_ TW_GUARDED_BY(mutex_) = Membership::kJoining;
  std::vector<Ref<MemberPort>> owned_ TW_GUARDED_BY(mutex_);  // by rank, as the next ones
  std::vector<bool> connecting_ TW_GUARDED_BY(mutex_);        // a thread makes a link
  std::vector<OfferedLink> offered_ TW_GUARDED_BY(mutex_);
  std::vector<GuestLink> guests_ TW_GUARDED_BY(mutex_);
  std::vector<Ref<MemberPort>> former_ TW_GUARDED_BY(mutex_);  // replaced, but perhaps in use
  std::vector<Ref<EventQueue>> watching_ TW_GUARDED_BY(mutex_);
  std::vector<std::string> whys_ TW_GUARDED_BY(mutex_);
  std::vector<Fate> due_ TW_GUARDED_BY(mutex_);        // to be told; kThere: nothing
  std::vector<bool> told_left_ TW_GUARDED_BY(mutex_);  // that it has left the others know
  bool asks_ TW_GUARDED_BY(mutex_) = false;            // who has left
  bool asked_ TW_GUARDED_BY(telling_) = false;         // the others
};

}  // namespace tw::collective
