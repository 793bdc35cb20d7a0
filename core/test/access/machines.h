// SPDX-License-Identifier: Apache-2.0
// Two ends of a link that carries nothing but one-sided operations: both machines, a receiver, and
// byte pipes that the test moves.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "access/initiator.h"
#include "access/target.h"
#include "memory/pool.h"
#include "message/receiver.h"
#include "test/access/told_ends.h"
#include "test/wire/support.h"
#include "wire/bytes.h"

namespace tw::test {

// Memory that stands alone, so that a sanitizer sees an access past its end or its life.
class Words final : public RefCounted {
 public:
  Words(size_t bytes, size_t& live) : words_(new uint64_t[(bytes + 7) / 8]()), live_(live) {
    ++live_;
  }
  ~Words() override { --live_; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(words_.get()); }

 private:
  const std::unique_ptr<uint64_t[]> words_;
  size_t& live_;
};

class Side final : public Receiver::Sink {
 public:
  explicit Side(size_t piece_bytes)
      : target(out),
        initiator(out, piece_bytes, false),
        receiver(*pool, *fetched, UINT64_MAX, *this) {}

  // Exposes fresh memory to the peer.
  uint64_t expose(size_t bytes, Rights rights) {
    auto memory = make_ref<Words>(bytes, live);
    exposed = memory->data();
    wire::Region region;
    region.id = target.next_region();
    region.length = bytes;
    region.rights = rights;
    target.expose(make_ref<Grant>(region, memory->data(), memory));
    Bytes frame(wire::kRegionFrameSize);
    wire::encode_region(frame.data(), region);
    post(frame);
    return region.id;
  }
  bool conceal(uint64_t region) {
    const bool inbound = target.inbound() == region;
    if (!target.conceal(region)) return false;
    if (inbound && receiver.placing()) receiver.misplace();
    Bytes frame(wire::kRegionGoneFrameSize);
    wire::encode_region_gone(frame.data(), region);
    post(frame);
    return true;
  }

  Result<Ref<Access>> start(const AccessRequest& request, Hold hold = {}) {
    auto access = initiator.submit(request, std::move(hold), told.next());
    if (access) initiator.fill();
    return access;
  }
  void finish() {
    auto ended = initiator.take_ended();
    while (const auto access = ended.pop()) access->finish();
  }

  // At most `most` bytes leave.
  size_t send(size_t most = SIZE_MAX) {
    std::array<iovec, 8> runs;
    const size_t n = out.gather(runs);
    size_t taken = 0;
    for (size_t i = 0; i < n && taken < most; ++i) {
      const size_t length = std::min(runs[i].iov_len, most - taken);
      const auto* at = static_cast<const std::byte*>(runs[i].iov_base);
      peer->arrived.insert(peer->arrived.end(), at, at + length);
      taken += length;
    }
    out.sent(taken);
    return taken;
  }
  // At most `most` bytes of what has arrived are handed to the receiver.
  Status receive(size_t most = SIZE_MAX) {
    std::array<iovec, 2> room;
    const size_t runs = receiver.buffers(room);
    size_t moved = 0;
    for (size_t i = 0; i < runs; ++i) {
      const size_t length = std::min({room[i].iov_len, most - moved, arrived.size() - moved});
      if (length != 0) std::memcpy(room[i].iov_base, arrived.data() + moved, length);
      moved += length;
    }
    arrived.erase(arrived.begin(), arrived.begin() + static_cast<std::ptrdiff_t>(moved));
    return receiver.received(moved);
  }

  // Puts a frame between those of the machines, as the link's sender does.
  void post(const Bytes& frame) {
    if (!out.midway()) {
      peer->arrived.insert(peer->arrived.end(), frame.begin(), frame.end());
      return;
    }
    FrameQueue::Frame copy;
    std::copy(frame.begin(), frame.end(), copy.head.begin());
    copy.head_size = frame.size();
    copy.outcome = true;
    out.push(copy);
  }

  Status on_region(const wire::Region& region) override { return initiator.on_region(region); }
  Status on_region_gone(uint64_t region) override { return initiator.on_region_gone(region); }
  Result<std::byte*> on_operation(const wire::OperationFrame& operation,
                                  std::span<const std::byte> here) override {
    return target.on_operation(operation, here);
  }
  Result<std::byte*> on_outcome(const wire::OutcomeFrame& outcome,
                                std::span<const std::byte> here) override {
    return initiator.on_outcome(outcome, here);
  }
  Status on_placed(wire::FrameType type) override {
    if (type == wire::FrameType::kOutcome) return initiator.outcome_arrived();
    target.operation_arrived();
    return {};
  }
  static Status stray() { return {Code::kUnknown, "a frame that no operation sends"}; }
  Status on_message(Ref<Parcel>) override { return stray(); }
  Result<Receiver::Cost> on_wait(uint64_t, std::span<const std::byte>, uint64_t,
                                 const Receiver::Cost&) override {
    return stray();
  }
  Status on_fin(std::span<const uint64_t>) override { return stray(); }
  Status on_unmappable(uint64_t) override { return stray(); }
  Status on_credit(uint64_t, uint64_t) override { return stray(); }
  void on_go_away(Code, std::string_view) override {}
  Result<InSegment> on_map(const wire::SegmentInfo&) override { return stray(); }
  Result<InSegment> on_return(const wire::SegmentInfo&) override { return stray(); }

  size_t live = 0;  // memory that was exposed and is held
  ToldEnds told;
  std::byte* exposed = nullptr;  // by the last expose()
  Side* peer = nullptr;
  Bytes arrived;
  FrameQueue out;
  Target target;
  Initiator initiator;
  const Ref<Pool> pool = make_ref<Pool>(size_t{1} << 20);
  const Ref<ReceiveMemory> fetched = make_ref<ReceiveMemory>(make_ref<Arena>(0), pool, 0);
  Receiver receiver;
};

struct Sides {
  explicit Sides(size_t piece_bytes = 64) : a(piece_bytes), b(piece_bytes) {
    a.peer = &b;
    b.peer = &a;
  }
  // Moves everything until both are quiet. The first error, if any.
  Status settle(size_t most = SIZE_MAX) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Side* side : {&a, &b}) {
        moved = side->send(most) != 0 || moved;
        if (side->arrived.empty()) continue;
        moved = true;
        if (Status status = side->receive(most); !status.ok()) return status;
      }
    }
    a.finish();
    b.finish();
    return {};
  }

  Side a, b;
};

}  // namespace tw::test
