// SPDX-License-Identifier: Apache-2.0
// How operations on the peer's memory begin.
#include <algorithm>
#include <utility>

#include "access/port.h"
#include "base/shortage.h"

namespace tw {

template <class Submit>
Result<Ref<Access>> AccessPort::begin(Submit&& submit, bool driving) {
  Result<Ref<Access>> access = Ref<Access>{};
  bool backlog, starved = false;
  EndedAccesses ended;
  {
    Link::Sending sending(link_);
    if (Status status = usable(sending); !status.ok()) return status;
    backlog = sending.backlog();
    link_.send_mutex().held();
    access = submit(initiator_);
    if (!access) return access;
    if (device_) {
      due_.store(true);
    } else {
      // Half an operation may be queued when it fails: the access ends with the link.
      starved = !has_memory_for([&] {
        link_.send_mutex().held();
        initiator_.fill();
        sending.flush();
      });
      if (starved) sending.break_off();
    }
    ended = take_ended();
  }
  finish(std::move(ended));
  if (starved) {
    link_.starve();
    return access;
  }
  if (device_)
    link_.kick(driving);
  else
    link_.after_flush(backlog, driving);
  return access;
}

Result<Ref<Access>> AccessPort::start(const AccessRequest& request, Hold hold, Notice told,
                                      bool driving) {
  AccessRequest wanted = request;
  // The bytes of a write with immediate are stored, and a frame follows with its value; what
  // cannot be right is refused by submit().
  const bool tells = request.kind == wire::OperationKind::kWriteImmediate && request.length != 0 &&
                     request.count == 1;
  if (tells) wanted.kind = wire::OperationKind::kWrite;
  // Before anything is done, which is not to be done again for want of memory.
  Ref<Access> mapped = may_map() ? make_ref<Access>(request, nullptr, Notice()) : nullptr;
  const auto done = mapped ? mapped_.run(wanted, std::nullopt, writing()) : Result<bool>(false);
  if (!done) return done.status();
  wanted.kind = request.kind;
  if (*done && !tells) {
    mapped->adopt(std::move(hold), std::move(told));
    mapped->finish();
    return mapped;
  }
  if (*done) wanted.length = 0;
  return begin(
      [&](Initiator& initiator) {
        auto access = initiator.submit(wanted, std::move(hold), std::move(told));
        if (access && wanted.kind != wire::OperationKind::kRead)
          writing_.store(true, std::memory_order_release);
        return access;
      },
      driving);
}

Result<Ref<AccessBatch>> AccessPort::prepare(std::span<const AccessRequest> requests,
                                             const std::optional<Signal>& signal) {
  auto batch = AccessBatch::make(requests, signal);
  if (!batch) return batch;
  const Link::Sending sending(link_);
  if (Status status = usable(sending); !status.ok()) return status;
  if (Status status = initiator_.check(**batch); !status.ok()) return status;
  return batch;
}

Result<Ref<Access>> AccessPort::start(Ref<const AccessBatch> batch, std::optional<uint64_t> value,
                                      Hold hold, Notice told, bool driving) {
  if (may_map()) {
    std::optional<Signal> signal = batch->signal();
    if (signal && value) signal->value = *value;
    auto access = make_ref<Access>(nullptr, std::nullopt, nullptr, Notice());
    const auto done = mapped_.run(*batch, signal, writing());
    if (!done) return done.status();
    if (*done) {
      access->adopt(std::move(hold), std::move(told));
      access->finish();
      return access;
    }
  }
  const bool partly = std::ranges::any_of(
      batch->regions(), [this](uint64_t region) { return mapped_.holds(region); });
  return begin(
      [&](Initiator& initiator) {
        // What follows and is mapped must not overtake it.
        if (partly) fenced_.store(true, std::memory_order_release);
        if (batch->writes()) writing_.store(true, std::memory_order_release);
        return initiator.submit(std::move(batch), value, std::move(hold), std::move(told));
      },
      driving);
}

void AccessPort::fence() {
  const Link::Sending sending(link_);
  initiator_.fence();
  fenced_.store(!initiator_.idle(), std::memory_order_release);
}

EndedAccesses AccessPort::take_ended() {
  if (initiator_.idle()) {
    fenced_.store(false, std::memory_order_release);
    writing_.store(false, std::memory_order_release);
  }
  return initiator_.take_ended();
}

Result<Ref<Access>> AccessPort::flush() {
  return begin([](Initiator& initiator) { return initiator.submit_flush(); }, true);
}

}  // namespace tw
