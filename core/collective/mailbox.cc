// SPDX-License-Identifier: Apache-2.0
#include "collective/mailbox.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "engine/event_queue.h"

namespace tw::collective {
// One receive at each rank. What has come to those that nobody took is kept, without more memory.
class Mailbox::Asking {
 public:
  Asking(Mailbox& mailbox, uint64_t tag)
      : mailbox_(mailbox), tag_(tag), asked_(static_cast<size_t>(mailbox.members_.size())) {}
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    all_.remove_if([this](const Asked& each) {
      return !each.receive || mailbox_.members_.tagged(each.rank)->cancel(*each.receive) ||
             !each.receive->status().ok();
    });
    {
      const MutexLock lock(mailbox_.mutex_);
      mailbox_.kept_.splice(mailbox_.kept_.end(), all_);
      mailbox_.asking_.erase(tag_);
    }
    mailbox_.turns_.notify();
  }

  // All ranks that there is a link with by now.
  Status ask(const Ref<EventQueue>& ended) {
    const Members& members = mailbox_.members_;
    for (int rank = 0; rank < members.size(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      if (asked_[at] || !members.linked(rank)) continue;
      asked_[at] = true;
      Asked& each = all_.emplace_back(Asked{tag_, rank, nullptr});
      auto receive = members.tagged(rank)->receive(tag_, nullptr, Notice(ended, 0));
      if (!receive) return receive.status();
      each.receive = std::move(*receive);
    }
    return {};
  }
  // Whether there is a message, or none will come any more.
  bool settled() {
    bool open = false;
    for (const Asked& each : all_) {
      if (!each.receive->ended())
        open = true;
      else if (each.receive->status().ok())
        return true;
    }
    return !open;
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
  const uint64_t tag_;
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
  Status turn = await_turn(tag, wait, [&] {
    mutex_.held();
    const auto at = std::ranges::find(kept_, tag, &Asked::tag);
    if (at == kept_.end()) {
      asking_.insert(tag);
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
    // Who cannot be reached has left, or the group is at its end, which is found below; or it comes
    // by itself when it has something to send.
    for (int rank = 0; rank < members_.size(); ++rank)
      if (rank != members_.rank())
        if (const auto port = members_.reach(rank, wait);
            !port && port.status().code() == Code::kDeadlineExceeded)
          return late();
    Asking asking(*this, tag);
    const auto ended = make_ref<EventQueue>();
    Status failed;
    Status waited = wait_in_slices(members_, wait, [&](Nanos until) {
      uint64_t tokens[16];
      size_t count = 0;
      for (;;) {
        failed = asking.ask(ended);
        if (!failed.ok() || asking.settled()) return true;
        if (ended->take(tokens, count, until) != EventQueue::Taken::kTokens) return false;
      }
    });
    if (!failed.ok()) return failed;
    first = asking.take();
    if (!first) {
      if (waited.code() == Code::kDeadlineExceeded) return late();
      if (!waited.ok()) return waited;
      return Status{Code::kUnavailable, "all other ranks have left the group"};
    }
  }
  auto message = taken(*first->receive);
  if (!message) return message.status();
  return FromAny{first->rank, std::move(*message)};
}

}  // namespace tw::collective
