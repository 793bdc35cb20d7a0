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
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "access/access.h"
#include "base/ref.h"
#include "engine/event.h"
#include "message/frame_queue.h"

namespace tw {

// What is wanted of the peer's memory.
struct AccessRequest {
  wire::OperationKind kind = wire::OperationKind::kRead;
  uint64_t region = 0;  // the peer's name for it
  uint64_t offset = 0;  // in the region
  // Source of a write, destination of a read; of an atomic, 8 bytes for the value before it.
  std::byte* local = nullptr;
  uint64_t length = 0;  // 8 for the atomics
  uint64_t operand = 0;
  uint64_t expected = 0;
  uint32_t immediate = 0;
};

// One operation under way. It ends exactly once; then nobody touches its local memory any more.
class Access final : public RefCounted {
 public:
  // `hold` keeps the local memory; `told` is called once it has ended, on any thread, and must
  // neither block nor call the link.
  Access(const AccessRequest& request, Hold hold, std::function<void()> told)
      : request_(request), hold_(std::move(hold)), told_(std::move(told)) {}

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Good once it has ended.
  const Status& status() const { return status_; }
  Event& event() { return event_; }
  // Without the link's locks, once the machine has given it up.
  void finish();

 private:
  friend class EndedAccesses;
  friend class Initiator;

  const AccessRequest request_;
  Hold hold_;
  const std::function<void()> told_;
  Event event_;
  std::atomic<bool> ended_{false};
  Status status_;
  // The machine's:
  uint64_t issued_ = 0;       // bytes
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
  // Pieces, and bytes of them, without an outcome. A piece passes alone, however large.
  static constexpr size_t kWindowPieces = 256;
  static constexpr uint64_t kWindowBytes = 16 << 20;
  static_assert(kWindowPieces <= wire::kMaxOperations);

  // device: pieces are started by next() and taken(), instead of being queued.
  Initiator(FrameQueue& out, size_t piece_bytes, bool device)
      : out_(out), piece_bytes_(piece_bytes), device_(device) {}

  // kInternal: the peer broke the protocol.
  Status on_region(const wire::Region& region);
  Status on_region_gone(uint64_t region);
  const wire::Region* region(uint64_t id) const;

  // NOT_FOUND, PERMISSION_DENIED, OUT_OF_RANGE, INVALID_ARGUMENT: it cannot be right, and nothing
  // has begun; nor has it after std::bad_alloc. Without a device, fill() is due.
  Result<Ref<Access>> submit(const AccessRequest& request, Hold hold, std::function<void()> told);
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
  // No other operation begins. What frames are to do ends now; the device's end by completed().
  void close(const Status& why);
  // The link is lost, and the device has stopped: all of them end.
  void drop(const Status& why);
  // What has ended since: call finish() of each without the link's locks.
  EndedAccesses take_ended() { return std::move(ended_); }

 private:
  struct Piece {
    Ref<Access> access;
    uint64_t offset;  // in the access
    uint64_t length;
  };

  void end_piece(uint64_t id, const Status& status);
  void end_if_done(Ref<Access> access) noexcept;
  void fail_waiting(const Status& why);
  static void fail(Access& access, const Status& why) noexcept;

  FrameQueue& out_;
  const size_t piece_bytes_;
  const bool device_;
  std::unordered_map<uint64_t, wire::Region> regions_;
  std::deque<Ref<Access>> waiting_;  // not wholly issued
  std::unordered_map<uint64_t, Piece> pieces_;
  uint64_t next_id_ = 1;
  uint64_t outstanding_bytes_ = 0;
  EndedAccesses ended_;
  Status closed_;

  // The OUTCOME under way.
  wire::OutcomeFrame outcome_;
  std::array<std::byte, wire::kMaxOutcomeDetails> details_;
  bool inbound_ = false;
};

}  // namespace tw
