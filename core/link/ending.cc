// SPDX-License-Identifier: Apache-2.0
// How a link ends: in order, by its peer's fault, or for want of memory.
#include <new>
#include <string>

#include "base/shortage.h"
#include "base/text.h"
#include "link/link.h"

namespace tw {

Status Lifecycle::why() const {
  const MutexLock lock(mutex_);
  return why_;
}

bool Lifecycle::close(Status why) {
  const MutexLock lock(mutex_);
  if (!open()) return false;
  here_.store(Here::kClosing);
  why_ = std::move(why);
  return true;
}

void Lifecycle::fail(Status why) {
  const MutexLock lock(mutex_);
  if (here_.exchange(Here::kClosing) == Here::kOpen && there_.load() != There::kLeaves)
    why_ = std::move(why);
}

void Lifecycle::leave(Code code, std::string_view reason) {
  const MutexLock lock(mutex_);
  if (why_.ok())
    why_ = {Code::kUnavailable, code == Code::kOk || reason.empty()
                                    ? std::string("the peer is going away")
                                    : "the peer is going away: " + std::string(reason)};
  if (there_.load() == There::kStays)
    there_.store(code == Code::kOk ? There::kClosed : There::kLeaves, std::memory_order_release);
}

void Link::go_away(Code code, std::string_view reason) {
  const Sending lock(*this);
  if (sends_ == Sends::kEnded) return;
  sender_.go_away(code, reason);
  flush_locked();
}

bool Link::drained() {
  if (fetches_.pending() != 0) return false;
  if (views_.load(std::memory_order_acquire) != 0 || fins_due_.load(std::memory_order_acquire))
    return false;
  const MutexLock lock(send_mutex_);
  return sender_.leases() == 0 && !sender_.pending() && memory_->idle();
}

// Of a link that closes and owes nothing: the peer has yet to get the last of it, or still sends.
bool Link::lingers(bool comes) {
  const MutexLock lock(send_mutex_);
  if (!comes && (sends_ != Sends::kOn || !transport_->undelivered())) return false;
  const Nanos at = now();
  if (linger_until_ == 0) linger_until_ = at + kLinger;
  if (at >= linger_until_) return false;
  if (!linger_timer_)
    linger_timer_ = poller_.add_timer(at + kLingerLook, Ref<Watcher>::share(this));
  return true;
}

void Link::close(Status why) {
  if (closed()) return;
  for (const auto& port : messages_) port->on_closing(why);
  go_away(Code::kOk, "");
  if (!life_.close(why)) return;
  for (const auto& port : messages_) port->on_closed(why);
  memory_->on_closed(why);
  kick(false);
}

void Link::lose(Status why) {
  if (lost()) return;
  life_.fail(why);
  if (why.code() == Code::kInternal)
    runtime_.audit().note(Incident::kProtocolBroken, peer_.name(), why.details());
  else if (why.code() == Code::kResourceExhausted)
    runtime_.audit().note(Incident::kBudgetLink, peer_.name(), why.details());
  bool touched = fetches_.under_way();
  {
    const MutexLock lock(send_mutex_);
    sends_ = Sends::kBroken;
    touched = touched || sender_.leases() != 0 || memory_->touches();
  }
  // A device may be reading what is lent, and writing what is fetched or exposed: it stops before
  // any of that memory is let go of.
  if (touched) transport_->revoke();
  {
    const Sending lock(*this);
    sends_ = Sends::kEnded;
    sender_.drop();
    unsent_.store(false);
    queued_.store(0, std::memory_order_relaxed);
    for (auto* timer :
         {&defer_timer_, &return_timer_, &reader_timer_, &host_timer_, &linger_timer_}) {
      if (*timer) poller_.cancel_timer(**timer);
      timer->reset();
    }
  }
  fetches_.drop();
  memory_->on_lost(why);
  for (const auto& port : messages_) port->on_lost(why);
  life_.end();
  transport_->hang_up();
  transport_->unwatch();
  if (death_watch_ != 0) poller_.unwatch(std::exchange(death_watch_, 0), peer_.pidfd.get());
  runtime_.unsubscribe(*this);
  leave_trace();
  for (const auto& port : messages_) port->on_gone();
}

// What the peer did wrong, it is told.
void Link::fail(Status why) {
  if (why.code() == Code::kInternal) go_away(why.code(), why.details());
  lose(std::move(why));
}

// In a handler.
void Link::out_of_memory() {
  const Shortage shortage;
  lose({Code::kResourceExhausted, "this process has no memory left for the link"});
}

void Link::starve() noexcept {
  const Shortage shortage;
  life_.doom(Lifecycle::Doom::kStarved);
  kick(false);
}

void Link::lose_host() {
  life_.doom(Lifecycle::Doom::kGroupSilent);
  kick(false);
}

void Link::give_up(Lifecycle::Doom why) {
  if (why == Lifecycle::Doom::kStarved) return out_of_memory();
  const bool silent = why != Lifecycle::Doom::kStalled;
  const bool in_group = why == Lifecycle::Doom::kGroupSilent;
  const auto& settings = runtime_.settings();
  Status over(Code::kUnavailable,
              silent ? text({"the peer's host answers nothing any more (TENSORWIRE_",
                             in_group ? "GROUP_" : "", "SILENCE_SECONDS is ",
                             (in_group ? settings.group_silence : settings.silence) / kSecond, ")"})
                     : text({"the peer has read nothing for ", settings.stall / kSecond,
                             " s of what waits for it (TENSORWIRE_STALL_SECONDS)"}));
  runtime_.audit().note(silent ? Incident::kHostSilent : Incident::kBudgetStalled, peer_.name(),
                        over.details());
  lose(std::move(over));
}

void Link::leave_trace() noexcept {
  if (!trace_.on() || trace_left_.exchange(true)) return;
  // Without memory the trace is lost, and nothing else.
  (void)has_memory_for([&] {
    runtime_.trace_file().add(
        {role_ == Role::kClient ? "client" : "server", transport(), peer_.address, thresholds()},
        trace_.record());
  });
}

}  // namespace tw
