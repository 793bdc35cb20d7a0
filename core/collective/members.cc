// SPDX-License-Identifier: Apache-2.0
#include "collective/members.h"

#include <utility>

#include "base/text.h"

namespace tw::collective {

Members::Members(Ref<Roster> roster) : roster_(std::move(roster)) {}

Members::~Members() { roster_->leave(); }

Result<TaggedPort*> Members::reach(int rank, const Wait& wait) const {
  if (TaggedPort* const there = tagged(rank)) return there;
  const auto reached = roster_->reach(rank, wait);
  if (reached) return &(*reached)->tagged();
  Status why = failure();
  return why.ok() ? reached.status() : why;
}

void Members::fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  failed_.store(true, std::memory_order_release);
  roster_->fail(why);
}

Status Members::failure() const {
  if (!failed()) return {};
  const MutexLock lock(mutex_);
  return failure_;
}

Status Members::disagreement() const {
  Agreement& agreement = roster_->agreement();
  if (const auto waits = agreement.untold(roster_->links()))
    (void)has_memory_for([&] { roster_->say_waits(*waits); });
  const auto odd = agreement.odd();
  return odd ? disagreement(odd->mine, odd->rank, odd->theirs) : Status();
}

Status Members::disagreement(const CollectiveCall& mine, int rank,
                             const CollectiveCall& theirs) const {
  return {Code::kAborted, text({name(this->rank()), " called ", mine.text(), ", but ", name(rank),
                                " called ", theirs.text()})};
}

bool Members::gone(int rank) const {
  if (rank == this->rank()) return false;
  const Fate fate = roster_->fate(rank);
  if (fate < Fate::kLeft && !roster_->port(rank)) roster_->ask_who_left();
  return fate >= Fate::kLeft;
}

}  // namespace tw::collective
