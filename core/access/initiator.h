// SPDX-License-Identifier: Apache-2.0
// The side of one-sided operations that wants something: what the peer has exposed, and this end's
// operations on it. No I/O, no locks: the link calls it under its send lock.
//
// Operations begin in the order of their submission. Large ones are cut into pieces, of which a
// window is outstanding: the link's other frames pass between them, and a slow peer is not flooded.
// A piece is a frame, or an operation of the transport's device.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "access/access.h"
#include "access/request.h"
#include "base/ref.h"
#include "engine/event.h"
#include "engine/event_queue.h"
#include "message/frame_queue.h"

namespace tw {

// One operation under way, or a batch. It ends exactly once; then nobody touches its local memory
// any more.
class Access final : public RefCounted {
 public:
  // `hold` keeps the local memory; `told`: once it has ended.
  Access(const AccessRequest& request, Hold hold, Notice told)
      : last_(request), hold_(std::move(hold)), told_(std::move(told)) {}
  // `signal`: what follows the requests.
  Access(Ref<const AccessBatch> batch, const std::optional<Signal>& signal, Hold hold, Notice told);

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Good once it has ended.
  const Status& status() const { return status_; }
  Event& event() { return event_; }
  // `hold` and `told` of an access that was made without.
  void adopt(Hold&& hold, Notice&& told) noexcept {
    hold_ = std::move(hold);
    told_ = std::move(told);
  }
  // Without the link's locks, once the machine has given it up.
  void finish();

 private:
  friend class EndedAccesses;
  friend class Initiator;

  // The request whose turn it is.
  const AccessRequest& request() const {
    return turn_ < requests().size() ? requests()[turn_] : *last_;
  }
  std::span<const AccessRequest> requests() const {
    return batch_ ? batch_->requests() : std::span<const AccessRequest>();
  }
  size_t turns() const { return requests().size() + (last_ ? 1 : 0); }
  // Where in its region the next piece begins.
  uint64_t offset() const { return request().offset + run_ * request().stride + issued_; }
  bool names(uint64_t region) const;
  // The signal is next, and must not be seen if what is before it fails.
  bool awaits_payload() const;
  // So many bytes of the request are issued.
  void advance(uint64_t bytes);

  const Ref<const AccessBatch> batch_;
  uint64_t word_ = 0;                  // of a signal
  std::optional<AccessRequest> last_;  // the only one; of a batch, its signal
  Hold hold_;
  Notice told_;
  Event event_;
  std::atomic<bool> ended_{false};
  Status status_;
  // The machine's:
  bool fenced_ = false;       // begins once all before it have ended
  size_t turn_ = 0;           // of its requests
  uint64_t run_ = 0;          // of that request
  uint64_t issued_ = 0;       // bytes of that run
  uint32_t outstanding_ = 0;  // pieces
  bool all_issued_ = false;
  Ref<Access> next_;  // of those that have ended
};

// Accesses in the order of their ends. They are linked through each other: an end takes no memory.
class EndedAccesses {
 public:
  EndedAccesses() = default;
  EndedAccesses(EndedAccesses&& other) noexcept { *this = std::move(other); }
  EndedAccesses& operator=(EndedAccesses&& other) noexcept {
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
    return *this;
  }
  ~EndedAccesses() {
    while (pop()) {
    }
  }

  void push(Ref<Access> access) noexcept;
  Ref<Access> pop() noexcept;  // null: there is none
  bool empty() const { return !first_; }

 private:
  Ref<Access> first_;
  Access* last_ = nullptr;
};

class Initiator {
 public:
  // Pieces, and bytes of them, without an outcome. A piece passes alone, however large. What leaves
  // room is followed by others once half of the window is free: each time is a system call here,
  // and another one at the peer.
  static constexpr size_t kWindowPieces = 256;
  static constexpr uint64_t kWindowBytes = 16 << 20;
  static_assert(kWindowPieces <= wire::kMaxOperations);

  // device: pieces are started by next() and taken(), instead of being queued.
  Initiator(FrameQueue& out, size_t piece_bytes, bool device)
      : out_(out), piece_bytes_(piece_bytes), device_(device) {}

  // kInternal: the peer broke the protocol. No id may come twice: of a batch that was checked
  // nothing but a region's end can have changed.
  Status check_new(const wire::Region& region) const;
  Status on_region(const wire::Region& region);
  Status on_region_gone(uint64_t region);
  const wire::Region* region(uint64_t id) const;

  // NOT_FOUND, PERMISSION_DENIED, OUT_OF_RANGE, INVALID_ARGUMENT: it cannot be right, and nothing
  // has begun, and `hold` and `told` are still the caller's; nor has it after std::bad_alloc.
  // Without a device, fill() is due.
  Result<Ref<Access>> submit(const AccessRequest& request, Hold&& hold, Notice&& told);
  // Likewise; its requests have been checked by check(). `value`: instead of the signal's.
  Result<Ref<Access>> submit(Ref<const AccessBatch> batch, std::optional<uint64_t> value,
                             Hold&& hold, Notice&& told);
  // Whether each request can be right, as far as this end knows.
  Status check(const AccessBatch& batch) const;
  // What is submitted from now on begins once all before it has ended.
  void fence() { fence_ = !idle(); }
  // Ends once all that was submitted before it has.
  Result<Ref<Access>> submit_flush();
  bool idle() const { return waiting_.empty() && pieces_.empty(); }
  // Without a device: queues the pieces that the window admits. After std::bad_alloc the link
  // cannot go on.
  void fill();

  // The piece that is due, if the window has room for one.
  std::optional<Operation> next() const;
  void taken(const Operation& piece);
  // The device has ended a piece. kInternal: there was none of this name.
  Status completed(const Completion& completion);

  // An OUTCOME has come, with the first bytes of its data. Where the others belong; null: they are
  // thrown away. kInternal: the peer broke the protocol.
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome, std::span<const std::byte> here);
  // ... and with all of its data now.
  Status outcome_arrived();
  // Whether data is being received into the memory of an operation.
  bool inbound() const { return inbound_; }

  size_t outstanding() const { return pieces_.size(); }
  size_t regions() const { return regions_.size(); }
  // What has been submitted so far; a batch is one operation.
  uint64_t operations() const { return operations_; }
  uint64_t bytes() const { return bytes_; }
  // No other operation begins. What frames are to do ends now; the device's end by completed().
  void close(const Status& why);
  // The link is lost, and the device has stopped: all of them end.
  void drop(const Status& why);
  // What has ended since: call finish() of each without the link's locks.
  EndedAccesses take_ended() { return std::move(ended_); }

 private:
  struct AccessPiece {
    Ref<Access> access;
    std::byte* local;
    uint64_t length;
    bool writes;
  };

  Status check(const AccessRequest& request) const;
  Ref<Access> queue(Ref<Access> access);
  void count(uint64_t bytes) { ++operations_, bytes_ += bytes; }
  // Those at the front that ask for nothing, and wait for nothing any more.
  void pass_flushes();

  void end_piece(uint64_t id, const Status& status);
  void end_if_done(Ref<Access> access) noexcept;
  void fail_waiting(const Status& why);
  static void fail(Access& access, const Status& why) noexcept;

  FrameQueue& out_;
  const size_t piece_bytes_;
  const bool device_;
  std::unordered_map<uint64_t, wire::Region> regions_;
  uint64_t last_region_ = 0;         // the id of the last one that came; they rise
  std::deque<Ref<Access>> waiting_;  // not wholly issued
  std::unordered_map<uint64_t, AccessPiece> pieces_;
  uint64_t next_id_ = 1;
  uint64_t outstanding_bytes_ = 0;
  uint64_t operations_ = 0, bytes_ = 0;
  bool fence_ = false;
  EndedAccesses ended_;
  Status closed_;

  // The OUTCOME under way.
  wire::OutcomeFrame outcome_;
  std::array<std::byte, wire::kMaxOutcomeDetails> details_;
  bool inbound_ = false;
};

}  // namespace tw
