// SPDX-License-Identifier: Apache-2.0
// The side of one-sided operations whose memory it is: what this end has exposed to its peer, and
// where no device does it, the peer's operations on it. No I/O, no locks: the link calls it under
// its send lock.
//
// An operation takes effect when its frame arrives; what is read is gathered later, as the
// transport takes it. So each operation sees all writes and updates that were issued before it, and
// a write that overtakes a read may show there. A write of one aligned word shows as a whole.
#pragma once

#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "access/access.h"
#include "access/grant.h"
#include "base/ref.h"
#include "message/frame_queue.h"

namespace tw {

class Target {
 public:
  // Writes with immediate whose values nobody has taken.
  static constexpr size_t kMaxImmediates = 65'536;

  explicit Target(FrameQueue& out) : out_(out) {}

  uint64_t next_region() { return next_region_++; }
  // Its hold keeps the memory until conceal() or drop().
  void expose(Ref<Grant> grant) { regions_.emplace(grant->region.id, std::move(grant)); }
  // Afterwards nothing here refers to the memory; of what is being received into it, see inbound().
  // Null: there is none.
  Ref<Grant> conceal(uint64_t region, Door::State why = Door::kConcealed);
  Ref<Grant> find(uint64_t region) const;
  size_t regions() const { return regions_.size(); }
  uint64_t bytes() const;  // of the regions
  std::vector<uint64_t> ids() const;

  // An OPERATION has come, with the first bytes of its payload. Where the others belong; null: they
  // are thrown away. kInternal: the peer broke the protocol.
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here);
  // ... and with all of its payload now.
  void operation_arrived();
  // What it has changed; null: nothing.
  const Grant* changed() const { return changed_; }
  // The region into which a payload is being received; zero: none.
  uint64_t inbound() const { return inbound_region_; }
  // Operations that ended well so far, and what they have read or written.
  uint64_t served() const { return served_; }
  uint64_t served_bytes() const { return served_bytes_; }

  // The value of a write with immediate; false: as many as may wait do.
  bool add_immediate(uint32_t value);
  bool take_immediate(uint32_t& value);
  size_t immediates() const { return immediates_.size(); }

  // The link is closing: the peer's operations end with this from now on.
  void close(Status why) { closed_ = std::move(why); }
  // The link is lost: all that was exposed.
  std::vector<Ref<Grant>> drop();

 private:
  Status missing(uint64_t region) const;
  Status check(const wire::OperationFrame& operation) const;
  void answer(uint64_t id, const std::byte* body, size_t size, uint64_t region);

  FrameQueue& out_;
  std::unordered_map<uint64_t, Ref<Grant>> regions_;
  uint64_t next_region_ = 1;
  Status closed_;

  // The operation under way.
  wire::OperationFrame operation_;
  Status verdict_;
  uint64_t inbound_region_ = 0;
  uint64_t word_ = 0;          // what is being received of one
  uint64_t* whole_ = nullptr;  // where it goes, at once
  const Grant* changed_ = nullptr;
  uint64_t served_ = 0, served_bytes_ = 0;

  std::deque<uint32_t> immediates_;
};

}  // namespace tw
