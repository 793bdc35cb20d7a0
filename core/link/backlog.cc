// SPDX-License-Identifier: Apache-2.0
// What a link has yet to send, and a peer, or its host, that does not take it.
#include "base/shortage.h"
#include "link/link.h"

namespace tw {

void Link::flush() {
  bool backlog;
  {
    const Sending lock(*this);
    backlog = unsent_.load();
    queue_fins_locked();
    flush_locked();
    if (!reader_timer_ && sends_ != Sends::kEnded) watch_reader();
  }
  after_flush(backlog, true);
}

bool Link::undelivered() {
  const MutexLock lock(send_mutex_);
  return transport_->undelivered();
}

template <class Withdraw>
bool Link::withdraw_by(Withdraw&& withdraw) {
  bool backlog, starved, given_up = false;
  {
    const Sending lock(*this);
    backlog = unsent_.load();
    starved = !has_memory_for([&] {
      send_mutex_.held();
      given_up = withdraw(sender_);
      flush_locked();
    });
    if (starved && sends_ != Sends::kEnded) sends_ = Sends::kBroken;
  }
  if (starved)
    starve();
  else
    after_flush(backlog, false);
  return starved || given_up;
}

bool Link::withdraw(const Ref<Outgoing>& outgoing) {
  return withdraw_by([&](Sender& sender) { return sender.withdraw(outgoing); });
}

void Link::withdraw_stream(uint64_t stream) {
  if (!unsent_.load()) return;
  (void)withdraw_by([&](Sender& sender) {
    sender.withdraw_stream(stream);
    return true;
  });
}

void Link::keep(const Ref<Outgoing>& outgoing, std::span<const OutSegment> segments, Hold memory,
                Nanos deadline) {
  {
    const Sending lock(*this);
    sender_.keep(outgoing, segments, std::move(memory), deadline);
    if (deadline != kForever && sends_ != Sends::kEnded) watch_reader();
  }
  after_flush(false, false);
}

// Send lock held: has somebody look at the reader, soon enough for what is kept to a deadline.
void Link::watch_reader() {
  const Nanos at = now();
  const Nanos limit = runtime_.settings().stall;
  Nanos next = sender_.next_deadline();
  if (limit != 0) next = std::min(next, at + limit / 4);
  if (next == kForever || (reader_timer_ && reader_timer_->first <= next)) return;
  if (reader_timer_) {
    poller_.cancel_timer(*reader_timer_);
  } else {
    reader_took_ = taken_.load(std::memory_order_relaxed);
    reader_moved_ = at;
  }
  reader_timer_ = poller_.add_timer(next, Ref<Watcher>::share(this));
}

// Withdraws what is late, and gives up a peer that takes nothing of what waits for it.
void Link::look_at_reader() {
  bool backlog, stalled = false;
  {
    const Sending lock(*this);
    const Nanos at = now();
    if (!reader_timer_ || reader_timer_->first > at) return;
    backlog = unsent_.load();
    sender_.withdraw_late(at);
    flush_locked();
    reader_timer_.reset();
    if (unsent_.load() || transport_->untaken()) {
      const Nanos limit = runtime_.settings().stall;
      const Nanos moved =
          taken_.load(std::memory_order_relaxed) == reader_took_ ? reader_moved_ : at;
      watch_reader();
      reader_moved_ = moved;
      stalled = limit != 0 && at - moved >= limit;
    }
  }
  after_flush(backlog, false);
  if (!stalled) return;
  life_.doom(Lifecycle::Doom::kStalled);
  kick(false);
}

// Send lock held: something has been sent.
void Link::watch_host() {
  const Nanos at = now();
  (void)host_silence_.look(at, {});  // nothing was due before
  host_timer_ = poller_.add_timer(at + host_silence_.every(), Ref<Watcher>::share(this));
}

// Gives up a peer whose host answers nothing any more. Where nothing is due, the kernel's probes
// find that out; those of a peer without room, whatever waits for it, count as sent
// (host_answer.cc).
void Link::look_at_host() {
  {
    const MutexLock lock(send_mutex_);
    const Nanos at = now();
    if (!host_timer_ || host_timer_->first > at) return;
    host_timer_.reset();
    const HostAnswer answer = transport_->host_answer().value_or(HostAnswer{});
    if (host_silence_.look(at, answer) != Silence::Verdict::kLost) {
      if (answer.due || answer.waits)
        host_timer_ = poller_.add_timer(at + host_silence_.every(), Ref<Watcher>::share(this));
      return;
    }
  }
  life_.doom(Lifecycle::Doom::kSilent);
  kick(false);
}

}  // namespace tw
