// SPDX-License-Identifier: Apache-2.0
// The processes of a group, each reached over a link, and whether they are all still there.
#pragma once

#include <atomic>
#include <string>

#include "base/mutex.h"
#include "base/ref.h"
#include "base/shortage.h"
#include "base/status.h"
#include "collective/roster.h"
#include "engine/waiting.h"

namespace tw::collective {

// Thread-safe.
class Members {
 public:
  explicit Members(Ref<Roster> roster);
  // Leaves: the others are told that this rank is done with what it has begun.
  ~Members();

  int rank() const { return roster_->rank(); }
  int size() const { return roster_->size(); }
  // How many of the others this rank has a link with, and whether it has one with this one.
  size_t links() const { return roster_->links(); }
  bool linked(int rank) const { return roster_->port(rank) != nullptr; }
  // Of ranks with which there is one.
  Link& link(int rank) const { return roster_->port(rank)->link(); }
  // Null: there is no link.
  TaggedPort* tagged(int rank) const {
    CallPort* const port = roster_->port(rank);
    return port ? &port->tagged() : nullptr;
  }
  // See Roster.
  void watch_links(const Ref<EventQueue>& queue) const { roster_->watch_links(queue); }
  void unwatch_links(const Ref<EventQueue>& queue) const { roster_->unwatch_links(queue); }
  // Makes the link where there is none. Errors as those of Fabric.
  Result<TaggedPort*> reach(int rank, const Wait& wait) const;
  // For error texts: rank 3 (ipv4:10.0.0.7:4242), rank 1 (pid 4711).
  std::string name(int rank) const { return roster_->name(rank); }

  // The group has come to its end. The first reason stays, and the others are told it.
  void fail(const Status& why);
  // The reason; ok while there is none.
  Status failure() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether a rank can still be counted on; else why not. One that has left in good order counts as
  // gone, too: whoever still needs something of it will not get it.
  Status standing(int rank) const { return roster_->standing(rank); }
  // That of all ranks, but for those that have left in good order. A slice of a wait asks this: it
  // costs a load.
  Status standing() const { return roster_->standing(); }
  // By whoever waits, in each slice: finds hosts that are cut off, whose ranks are gone then.
  // Without memory it looks the next time.
  void look_at_hosts() const noexcept {
    (void)has_memory_for([&] { roster_->look_at_hosts(); });
  }
  // An operation of this rank's, one after the other, for as long as it lives.
  class UnderWay {
   public:
    UnderWay(const Members& members, const NumberedCall& call)
        : agreement_(members.roster_->agreement()) {
      agreement_.begin(call);
    }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    ~UnderWay() { agreement_.end(); }

   private:
    Agreement& agreement_;
  };
  // By whoever waits in it, in each slice: tells the others so. ABORTED: one of them has called
  // something else. Without memory they are not told.
  Status disagreement() const;
  // ... as it is said of these two.
  Status disagreement(const CollectiveCall& mine, int rank, const CollectiveCall& theirs) const;
  // Whether the process behind a rank is gone, or has left; a group that has failed says nothing
  // of that.
  bool gone(int rank) const;

  // The longest that a wait goes without a look at standing(): a rank that dies is noticed so soon.
  static constexpr Nanos kSlice = 50 * kMillisecond;

 private:
  const Ref<Roster> roster_;
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;  // guards what follows; no other lock is taken inside
  Status failure_ TW_GUARDED_BY(mutex_);
};

// Repeats done(deadline), which is a wait for no longer than that, in slices. It is asked first: a
// rank that has left after it did its part is missed by nobody. `awaited`: the rank that makes it
// true; -1: any, and then one that leaves in good order ends no wait. DEADLINE_EXCEEDED without
// text: the caller knows who has not come.
template <class Done>
Status wait_in_slices(const Members& members, const Wait& wait, Done&& done, int awaited = -1) {
  for (;;) {
    const Nanos slice = std::min(wait.deadline, now() + Members::kSlice);
    if (done(slice)) return {};
    if (Status failure = members.failure(); !failure.ok()) return failure;
    members.look_at_hosts();
    Status why = members.standing();
    if (why.ok() && awaited >= 0) why = members.standing(awaited);
    if (!why.ok()) return done(Nanos{0}) ? Status() : why;
    if (wait.interrupted && wait.interrupted(wait.context) != 0)
      return {Code::kCancelled, "the wait was interrupted"};
    if (now() >= wait.deadline) return {Code::kDeadlineExceeded, ""};
  }
}

// The same; look() is asked after each slice in vain, and an error of its ends the wait. A done()
// that comes back early, as it may have been woken for another rank, is no slice.
template <class Done, class Look>
Status wait_and_look(const Members& members, const Wait& wait, Done&& done, Look&& look,
                     int awaited = -1) {
  Status seen;
  Nanos next = now() + Members::kSlice;
  const auto over = [&](Nanos until) {
    if (done(until)) return true;
    const Nanos at = now();
    if (at < std::min(until, next)) return false;
    next = at + Members::kSlice;
    seen = look();
    return !seen.ok();
  };
  Status waited = wait_in_slices(members, wait, over, awaited);
  return waited.ok() ? seen : waited;
}

}  // namespace tw::collective
