// SPDX-License-Identifier: Apache-2.0
// One-sided operations on a link: memory that this end lets its peer at, and accesses of the
// peer's. The machines behind it are Target and Initiator; where the transport has a device for it
// (Profile::one_sided), that one does the work, else both are joined by frames.
//
// Ordering: an operation sees all writes and atomics that this end issued before it. Nothing is
// promised of a write that is issued while a read or an atomic has not ended, nor of operations and
// messages among each other: wait for the end of the one before.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "access/initiator.h"
#include "access/target.h"
#include "base/mutex.h"
#include "link/link.h"

namespace tw {

// Locks: those of the link, and the place lock of MemoryPort.
class AccessPort final : public MemoryPort {
 public:
  explicit AccessPort(Link& link);

  // A reference to it is one to its link.
  void retain() const noexcept { link_.retain(); }
  void release() const noexcept { link_.release(); }
  Link& link() const { return link_; }

  // ---- for users: any thread, no lock of the link's held ----

  // Lets the peer at [data, data + size), and names the region on this link; the peer knows it
  // before any message that is sent from now on. `hold` keeps the memory until conceal() or the
  // end of the link.
  // INVALID_ARGUMENT, UNIMPLEMENTED (the peer knows no such operations), RESOURCE_EXHAUSTED, or why
  // the link is not alive.
  Result<uint64_t> expose(std::byte* data, size_t size, Rights rights, Hold hold);
  // From the return on the peer can neither read nor write there. An operation that it started
  // without knowing ends NOT_FOUND; where a device serves operations, that costs the link.
  // NOT_FOUND.
  Status conceal(uint64_t region);

  // What the peer has exposed under this name.
  struct Remote {
    uint64_t length;
    Rights rights;
  };
  std::optional<Remote> remote(uint64_t region);
  // Begins an operation. `hold` keeps its local memory until it has ended; it cannot be called
  // back, so a wait that runs out of time leaves it under way. `told`: see Access. With `driving`
  // the caller is going to wait for it.
  // NOT_FOUND, PERMISSION_DENIED, OUT_OF_RANGE, INVALID_ARGUMENT, UNIMPLEMENTED, or why the link is
  // not alive: nothing has begun; nor has it after std::bad_alloc. An access ends with these, as
  // the peer saw it, or with the link's status.
  Result<Ref<Access>> start(const AccessRequest& request, Hold hold,
                            std::function<void()> told = {}, bool driving = false);
  Waited wait(Access& access, Nanos deadline);

  // The values of the peer's writes with immediate, in order.
  bool take_immediate(uint32_t& value);
  // Until there is one, or surely none will come.
  Waited wait_immediate(Nanos deadline);
  // The link carries no operations any more.
  bool over() const;

 private:
  Status on_region(const wire::Region& region) override;
  Status on_region_gone(uint64_t region) override;
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here) override;
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override;
  Status on_placed(wire::FrameType type) override;
  void settle_now() override;

  Status start_due() override;
  Status on_completion(const Completion& completion) override;
  Status take_immediates() override;

  bool idle() const TW_REQUIRES(link_.send_mutex()) override {
    return !out_.pending() && initiator_.outstanding() == 0;
  }
  bool touches() const TW_REQUIRES(link_.send_mutex()) override {
    return device_ && (initiator_.outstanding() != 0 || target_.regions() != 0);
  }
  void on_closed(const Status& why) override;
  void on_lost(const Status& why) override;

  Status usable(const Link::Sending& sending) const TW_REQUIRES(link_.send_mutex());
  void misplace() TW_REQUIRES(link_.send_mutex());
  void finish(EndedAccesses ended);

  Link& link_;
  const bool device_;
  const bool supported_;

  Target target_ TW_GUARDED_BY(link_.send_mutex());
  Initiator initiator_ TW_GUARDED_BY(link_.send_mutex());

  Event immediate_;
  std::atomic<size_t> immediates_{0};  // how many wait to be taken
};

}  // namespace tw
