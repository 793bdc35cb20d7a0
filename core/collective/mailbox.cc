// SPDX-License-Identifier: Apache-2.0
#include "collective/mailbox.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "engine/event_queue.h"

namespace tw::collective {

// One receive at each rank that there is a link with: who has something to send makes one. What has
// come to those that nobody took is kept, without more memory.
class Mailbox::Asking {
 public:
  Asking(Mailbox& mailbox, uint64_t tag)
      : mailbox_(mailbox),
        members_(mailbox.members_),
        tag_(tag),
        asked_(static_cast<size_t>(members_.size())) {
    asked_[static_cast<size_t>(members_.rank())] = true;
    members_.watch_links(events_);
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    members_.unwatch_links(events_);
    if (!begun_) return;
    all_.remove_if([this](const Asked& each) {
      return !each.receive || members_.tagged(each.rank)->cancel(*each.receive) ||
             !each.receive->status().ok();
    });
    {
      const MutexLock lock(mailbox_.mutex_);
      mailbox_.kept_.splice(mailbox_.kept_.end(), all_);
      mailbox_.asking_.erase(tag_);
    }
    mailbox_.turns_.notify();
  }

  // This thread asks all; the others wait.
  void begin() { begun_ = true; }
  // Those that there is a link with by now.
  Status ask() {
    for (int rank = 0; rank < members_.size(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      if (asked_[at] || !members_.linked(rank)) continue;
      asked_[at] = true;
      Asked& each = all_.emplace_back(Asked{tag_, rank, nullptr});
      auto receive = members_.tagged(rank)->receive(tag_, nullptr, Notice(events_, 0));
      if (!receive) {
        all_.pop_back();
        return receive.status();
      }
      each.receive = std::move(*receive);
    }
    return {};
  }
  enum class State : uint8_t { kOpen, kMessage, kOver };
  // kOver: those that were asked send nothing any more.
  State state() const {
    State state = State::kOver;
    for (const Asked& each : all_) {
      if (!each.receive->ended())
        state = State::kOpen;
      else if (each.receive->status().ok())
        return State::kMessage;
    }
    return state;
  }
  // Until something may have changed. False: not in time.
  bool wait(Nanos until) {
    uint64_t tokens[16];
    size_t count = 0;
    return events_->take(tokens, count, until) == Waited::kDone;
  }
  // Links with the others. UNAVAILABLE: none of them is there; DEADLINE_EXCEEDED, CANCELLED.
  Status reach_others(const Wait& wait) {
    Status none{Code::kUnavailable, "all other ranks have left the group"};
    for (int rank = 0; rank < members_.size(); ++rank) {
      if (asked_[static_cast<size_t>(rank)]) continue;
      const auto reached = members_.reach(rank, wait);
      if (reached)
        none = {};
      else if (reached.status().code() == Code::kDeadlineExceeded ||
               reached.status().code() == Code::kCancelled)
        return reached.status();
    }
    return none;
  }
  // The one that has come; null: none.
  std::optional<Asked> take() {
    for (auto at = all_.begin(); at != all_.end(); ++at) {
      if (!at->receive->ended() || !at->receive->status().ok()) continue;
      Asked first = std::move(*at);
      all_.erase(at);
      return first;
    }
    return std::nullopt;
  }

 private:
  Mailbox& mailbox_;
  const Members& members_;
  const uint64_t tag_;
  const Ref<EventQueue> events_ = make_ref<EventQueue>();
  bool begun_ = false;
  std::vector<bool> asked_;  // by rank
  std::list<Asked> all_;
};

template <class Ready>
Status Mailbox::await_turn(uint64_t tag, const Wait& wait, Ready&& ready) {
  return wait_in_slices(members_, wait, [&](Nanos until) {
    for (;;) {
      const uint32_t seen = turns_.sequence();
      {
        const MutexLock lock(mutex_);
        if (!asking_.contains(tag)) {
          ready();
          return true;
        }
      }
      if (turns_.wait(seen, until) != FutexWait::kWoken) return false;
    }
  });
}

Result<InMessage> Mailbox::receive(int rank, uint64_t tag, const Wait& wait) {
  const auto port = members_.reach(rank, wait);
  if (!port) return port.status();
  Result<Ref<TaggedReceive>> asked = Ref<TaggedReceive>{};
  // Asked for under the lock: whoever asks all ranks from now on comes behind this receive.
  Status turn = await_turn(tag, wait, [&] {
    mutex_.held();
    const auto at = std::ranges::find_if(
        kept_, [&](const Asked& each) { return each.rank == rank && each.tag == tag; });
    if (at == kept_.end()) {
      asked = (*port)->receive(tag);
      return;
    }
    asked = std::move(at->receive);
    kept_.erase(at);
  });
  if (turn.code() == Code::kDeadlineExceeded)
    return Status{turn.code(), text({"no message has come from ", members_.name(rank),
                                     " while another thread was receiving from any rank"})};
  if (!turn.ok()) return turn;
  if (!asked) return asked.status();
  return await_message(members_, rank, **asked, wait);
}

Result<Mailbox::FromAny> Mailbox::receive_any(uint64_t tag, const Wait& wait) {
  std::optional<Asked> first;
  Asking asking(*this, tag);
  Status turn = await_turn(tag, wait, [&] {
    mutex_.held();
    const auto at = std::ranges::find(kept_, tag, &Asked::tag);
    if (at == kept_.end()) {
      asking_.insert(tag);
      asking.begin();
      return;
    }
    first = std::move(*at);
    kept_.erase(at);
  });
  const auto late = [] {
    return Status{Code::kDeadlineExceeded, "no message has come from any rank in time"};
  };
  if (!turn.ok()) return turn.code() == Code::kDeadlineExceeded ? late() : turn;
  if (!first) {
    Status ended;  // why nothing comes any more
    Status waited = wait_in_slices(members_, wait, [&](Nanos until) {
      for (;;) {
        ended = asking.ask();
        if (!ended.ok()) return true;
        switch (asking.state()) {
          case Asking::State::kMessage:
            return true;
          case Asking::State::kOpen:
            if (!asking.wait(until)) return false;
            break;
          case Asking::State::kOver:
            ended = asking.reach_others({until, wait.interrupted, wait.context});
            if (ended.code() == Code::kDeadlineExceeded) return false;
            if (!ended.ok()) return true;
        }
      }
    });
    first = asking.take();
    if (!first && waited.code() == Code::kDeadlineExceeded) return late();
    if (!first && !waited.ok()) return waited;
    if (!first) {
      Status why = members_.failure();
      if (why.ok()) why = members_.standing();
      return why.ok() ? ended : why;
    }
  }
  auto message = taken(*first->receive);
  if (!message) return message.status();
  return FromAny{first->rank, std::move(*message)};
}

}  // namespace tw::collective
