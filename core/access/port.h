// SPDX-License-Identifier: Apache-2.0
// One-sided operations on a link: memory that this end lets its peer at, and accesses of the
// peer's. The machines behind it are Target and Initiator; where the transport has a device for it
// (Profile::one_sided), that one does the work, else both are joined by frames.
//
// Ordering: an operation sees all writes and atomics that this end issued before it. Nothing is
// promised of a write that is issued while a read or an atomic has not ended, nor of operations and
// messages among each other: wait for the end of the one before.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "access/initiator.h"
#include "access/mapped.h"
#include "access/target.h"
#include "base/mutex.h"
#include "engine/word_waits.h"
#include "link/link.h"

namespace tw {

// Locks: those of the link, and the place lock of MemoryPort.
class AccessPort final : public MemoryPort, private WordWaits::Waiter {
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
  // From the return on the peer can neither read nor write there, once it has left(): one that has
  // mapped the memory may be amid an access. An operation that it started without knowing ends
  // NOT_FOUND; where a device serves operations, that costs the link. Repeated while the peer has
  // not left, it gives the same grant. NOT_FOUND.
  Result<Ref<Grant>> conceal(uint64_t region);
  // Until the peer has left, or has died.
  Waited wait_left(const Grant& concealed, Nanos deadline);

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
  Result<Ref<Access>> start(const AccessRequest& request, Hold hold, Notice told = {},
                            bool driving = false);
  // What start() checks of each request is checked here, once.
  Result<Ref<AccessBatch>> prepare(std::span<const AccessRequest> requests,
                                   const std::optional<Signal>& signal);
  // Begins a batch of this link's. `value`: of its signal, instead of the one that it has.
  Result<Ref<Access>> start(Ref<const AccessBatch> batch, std::optional<uint64_t> value, Hold hold,
                            Notice told = {}, bool driving = false);
  Waited wait(Access& access, Nanos deadline);
  // Whether operations on a region of the peer's are loads and stores of this process.
  bool mapped(uint64_t region) { return mapped_.holds(region); }
  // Ok, or why they are not. NOT_FOUND.
  Status why_not_mapped(uint64_t region);
  // Does the operation, and the signal after it, by loads and stores, if what they name is mapped.
  // False: it is not, and nothing has been done. Errors as of start().
  Result<bool> do_mapped(const AccessRequest& request, const std::optional<Signal>& signal) {
    return may_map() ? mapped_.run(request, signal, writing()) : false;
  }
  // What begins from now on happens after all that has begun before, reads, too.
  void fence();
  // An access that ends once all that has begun before it has been done at the peer, or has failed.
  Result<Ref<Access>> flush();

  // ---- words of this end that the peer changes ----

  // A word of a region of this end's, which stays there for as long as this lives.
  class Word {
   public:
    uint64_t load() const { return word().load(std::memory_order_acquire); }
    bool over() const { return grant_->over(); }

   private:
    friend class AccessPort;
    Word(Ref<Grant> grant, uint64_t offset) : grant_(std::move(grant)), offset_(offset) {}
    std::atomic_ref<uint64_t> word() const {
      return std::atomic_ref(*reinterpret_cast<uint64_t*>(grant_->data + offset_));
    }

    Ref<Grant> grant_;
    uint64_t offset_;
  };
  // NOT_FOUND, OUT_OF_RANGE, INVALID_ARGUMENT, or why the link is not alive.
  Result<Word> word(uint64_t region, uint64_t offset);
  // Until it is at least so much, or the peer is let at it no more.
  Waited wait_word(const Word& word, uint64_t at_least, Nanos deadline);
  // Why it is not any more.
  Status ended(const Word& word);
  // This end's own change; the value before it.
  uint64_t change(const Word& word, uint64_t value, bool add);

  // The values of the peer's writes with immediate, in order.
  bool take_immediate(uint32_t& value);
  // Until there is one, or surely none will come.
  Waited wait_immediate(Nanos deadline);
  // The link carries no operations any more.
  bool over() const;

 private:
  Status on_region(const wire::Region& region) TW_REQUIRES(link_.baton()) override;
  Status on_region_gone(uint64_t region) TW_REQUIRES(link_.baton()) override;
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here)
      TW_REQUIRES(link_.baton()) override;
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override;
  Status on_placed(wire::FrameType type) TW_REQUIRES(link_.baton()) override;
  void settle() TW_REQUIRES(link_.baton()) override {
    if (unsettled_) settle_now();
  }
  void settle_now() TW_REQUIRES(link_.baton());

  Status start_due() TW_REQUIRES(link_.baton()) override;
  Status on_completion(const Completion& completion) TW_REQUIRES(link_.baton()) override;
  Status take_immediates() TW_REQUIRES(link_.baton()) override;

  FrameQueue& out() TW_REQUIRES(link_.send_mutex()) override { return out_; }
  bool idle() const TW_REQUIRES(link_.send_mutex()) override {
    return !out_.pending() && initiator_.outstanding() == 0;
  }
  bool touches() const TW_REQUIRES(link_.send_mutex()) override {
    return device_ && (initiator_.outstanding() != 0 || target_.regions() != 0);
  }
  AccessCounters counters() const TW_REQUIRES(link_.send_mutex()) override;
  const Status& unmapped() const TW_REQUIRES(link_.send_mutex()) override { return unmapped_why_; }
  void on_closed(const Status& why) override;
  void on_lost(const Status& why) override;

  Status usable(const Link::Sending& sending) const TW_REQUIRES(link_.send_mutex());
  // A region goes by frames that was to be mapped: counted, and told once for a link.
  void not_mapped(uint64_t& counter, const Status& why) TW_REQUIRES(link_.send_mutex());
  // The same of regions that waited to be handed over, and were not.
  void note_unhanded(const Transport& transport) TW_REQUIRES(link_.send_mutex());
  // What is mapped is done at once, unless it has to wait for something before it.
  bool may_map() const {
    return (maps_ || maps_blocks_) && !fenced_.load(std::memory_order_acquire) && !over();
  }
  bool writing() const { return writing_.load(std::memory_order_acquire); }
  EndedAccesses take_ended() TW_REQUIRES(link_.send_mutex());
  bool peer_died() const;
  template <class Submit>
  Result<Ref<Access>> begin(Submit&& submit, bool driving);
  void look_again() override;
  // As conceal(). std::bad_alloc: the region may still be there.
  Result<Ref<Grant>> end_grant(uint64_t region);
  void misplace() TW_REQUIRES(link_.send_mutex());
  void end_leaving() TW_REQUIRES(link_.send_mutex());
  void finish(EndedAccesses ended);

  Link& link_;
  const bool device_;
  const bool supported_;
  const bool maps_;  // both ends do, and the transport hands memory over
  const bool maps_blocks_;

  FrameQueue out_ TW_GUARDED_BY(link_.send_mutex());
  bool unsettled_ TW_GUARDED_BY(link_.baton()) = false;
  Target target_ TW_GUARDED_BY(link_.send_mutex());
  Initiator initiator_ TW_GUARDED_BY(link_.send_mutex());

  // Concealed, or of a link that is over, while the peer is amid an access.
  std::vector<Ref<Grant>> leaving_ TW_GUARDED_BY(link_.send_mutex());
  MappedRegions mapped_;
  // Of this end's memory, and of the peer's.
  uint64_t unhanded_ TW_GUARDED_BY(link_.send_mutex()) = 0;
  uint64_t unmapped_ TW_GUARDED_BY(link_.send_mutex()) = 0;
  uint64_t late_ TW_GUARDED_BY(link_.send_mutex()) = 0;  // of Transport::not_handed(), noted
  Status unmapped_why_ TW_GUARDED_BY(link_.send_mutex());
  std::atomic<bool> fenced_{false};  // some of what was begun before the last fence has not ended
  // Writes by frames have not ended. They may be to memory of an arena that was exposed twice, once
  // for reading only: what is read there must not overtake them.
  std::atomic<bool> writing_{false};

  Event arrival_;  // of immediates, and of changes to words
  // The peer has written since the last look.
  bool wrote_ TW_GUARDED_BY(link_.baton()) = false;
  std::atomic<size_t> immediates_{0};  // how many wait to be taken
};

}  // namespace tw
