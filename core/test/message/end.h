// SPDX-License-Identifier: Apache-2.0
// One end of a fake link: a sender and a receiver with real memory behind them, and a record of all
// that the receiver hands up.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "memory/mapping.h"
#include "memory/pool.h"
#include "message/receiver.h"
#include "message/sender.h"
#include "test/wire/support.h"
#include "wire/bytes.h"

namespace tw::test {

// Thresholds so small that a few hundred bytes go through every branch.
inline constexpr Profile tiny(Bulk bulk) { return {"fake", bulk, 16, 32, 64, 2}; }
// What the product starts with.
inline constexpr Profile usual(Bulk bulk) { return {"fake", bulk, 8 << 10, 16 << 10, 4 << 20, 4}; }

// Who owns the bytes of a segment to send.
enum class Owner {
  kCaller,
  kHold,
  kBlock,       // pages of its own in the arena: a peer may have them on a lease
  kSmallBlock,  // arena memory that shares its page
};

struct Part {
  Bytes bytes;
  Owner owner = Owner::kCaller;
};

// A message to send.
struct Sample {
  uint64_t stream = 1;
  Bytes header;
  std::vector<Part> parts;
};

// A message as it was handed up.
struct Received {
  uint64_t stream = 0;
  Bytes header;
  std::vector<Bytes> segments;
  uint64_t payload_bytes = 0;
  size_t leased = 0;  // segments that lie in the sender's memory
  size_t chunks = 0;  // that had come until then, of any message
  Status status;
};

// Memory that a message holds; counts what lives.
class Held final : public RefCounted {
 public:
  Held(Bytes bytes, size_t& live) : bytes_(std::move(bytes)), live_(live) { ++live_; }
  ~Held() override { --live_; }
  const Bytes& bytes() const { return bytes_; }

 private:
  const Bytes bytes_;
  size_t& live_;
};

class Returns final : public LeaseReturn {
 public:
  void lease_done(uint64_t id) noexcept override { ids.push_back(id); }
  std::vector<uint64_t> ids;
};

struct EndOptions {
  Profile profile = tiny(Bulk::kPush);
  uint64_t max_message = UINT64_MAX;
  uint64_t window = UINT64_MAX;  // bytes and headers of what may wait on a stream
  wire::Limits limits = {};
  size_t peer_slabs = SIZE_MAX;     // of the peer's that can be mapped
  size_t fetched_limit = SIZE_MAX;  // bytes of the arena for what is read
};

class End final : public Receiver::Sink {
 public:
  End(const EndOptions& options, Ref<Arena> memory, Ref<Pool> buffers)
      : arena(std::move(memory)),
        pool(std::move(buffers)),
        fetched(make_ref<ReceiveMemory>(arena, pool, options.fetched_limit)),
        sender(
            options.profile, [this](Slab& slab) { return share(slab); }, options.limits, &trace),
        window(options.window),
        peer_memory(make_ref<PeerArena>(size_t{1} << 40, options.peer_slabs)),
        receiver(*pool, *fetched, options.max_message, *this, options.limits, &trace) {}

  // ------------------------------------------------------------------------------------- sending

  // What the caller lent to a message, until the machine lets it go.
  struct Posted {
    Ref<Outgoing> outgoing;
    std::vector<std::unique_ptr<std::byte[]>> lent;
  };

  Result<Ref<Outgoing>> post(const Sample& sample) {
    std::vector<OutSegment> segments;
    Posted posted;
    for (const Part& part : sample.parts) segments.push_back(segment(part, posted));
    auto outgoing = sender.submit(sample.stream, sample.header, segments, &event);
    if (!outgoing.ok()) return outgoing;
    posted.outgoing = *outgoing;
    if (posted.outgoing) unfinished.push_back(std::move(posted));
    return outgoing;
  }

  // Gives the memory back to the caller, who frees it at once: a sanitizer then sees a late read.
  void reclaim() {
    std::erase_if(unfinished, [](const Posted& posted) { return !posted.outgoing->borrowed(); });
    (void)sender.take_spent();
  }

  Ref<Quota> quota;  // of blocks that are made from now on

  Ref<Block> block(size_t size) {
    auto made = arena->allocate(size, 0, quota);
    REQUIRE(made.ok());
    Slab& slab = (*made)->slab();
    slabs.insert_or_assign({slab.index(), slab.generation()}, Ref<Slab>::share(&slab));
    return *made;
  }

  // ----------------------------------------------------------------------------------- receiving

  void start_reads() {
    for (auto& read : receiver.take_reads()) reads.push_back(std::move(read));
  }

  // The one-sided read number `at` of those in flight, and the FIN that is due then.
  Status finish_read(size_t at) {
    const Receiver::Read read = std::move(reads[at]);
    reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(at));
    const Slab& slab = *peer->slabs.at({read.from.slab, read.from.generation});
    REQUIRE(read.from.offset + read.from.length <= slab.size());
    if (read.destination)
      std::memcpy(read.destination, slab.base() + read.from.offset, read.from.length);
    Status status = receiver.read_done(read);
    sender.fin(std::span(&read.rendezvous, 1));
    return status;
  }

  void return_leases() { sender.fin(std::exchange(returns->ids, {})); }

  Status on_message(Ref<Parcel> parcel) override {
    InMessage message = Parcel::open(std::move(parcel));
    Received got;
    got.stream = message.stream;
    got.header.assign(message.header.begin(), message.header.end());
    got.payload_bytes = message.payload_bytes;
    got.status = message.status;
    got.chunks = receiver.counters().pushed_chunks + receiver.counters().reads;
    for (const InSegment& in : message.segments) {
      got.segments.emplace_back(in.data, in.data + in.size);
      got.leased += in.view() != nullptr;
    }
    received.push_back(std::move(got));
    if (keep) kept.push_back(std::move(message));
    return {};
  }
  Result<Receiver::Cost> on_wait(uint64_t, std::span<const std::byte> header,
                                 uint64_t payload_bytes, const Receiver::Cost& ahead) override {
    waited.push_back(ahead);
    if (ahead.credit >= window) return wire::protocol_error({"without credit"});
    return Receiver::Cost{payload_bytes, header.size()};
  }
  Status on_fin(std::span<const uint64_t> ids) override {
    fins += ids.size();
    return sender.on_fin(ids);
  }
  Status on_unmappable(uint64_t lease) override { return sender.on_unmappable(lease); }
  Status on_credit(uint64_t stream, uint64_t bytes) override {
    credits.emplace_back(stream, bytes);
    return {};
  }
  void on_go_away(Code code, std::string_view reason) override {
    away = {code, std::string(reason)};
  }
  Result<InSegment> on_map(const wire::SegmentInfo& info) override {
    if (!map_status.ok()) {
      returns->ids.push_back(info.map.lease);
      return std::exchange(map_status, {});
    }
    auto located =
        peer_memory->locate({info.map.slab, info.map.generation, info.map.offset, info.length});
    if (!located.ok()) {
      if (located.status().code() == Code::kResourceExhausted) sender.unmappable(info.map.lease);
      return located.status();
    }
    auto view = LeasedView::make(*located, returns, info.map.lease);
    if (!view.ok()) return view.status();
    InSegment in;
    in.data = (*view)->bytes().data();
    in.size = info.length;
    in.hold = *view;
    return in;
  }

  Result<InSegment> on_return(const wire::SegmentInfo& info) override {
    auto lent = sender.lent(info.map.lease,
                            {info.map.slab, info.map.generation, info.map.offset, info.length});
    if (!lent.ok()) return lent.status();
    return view_of(*lent);
  }

  // One-sided operations have an end of their own: test/message/one_sided.cc.
  static Status stray() { return wire::protocol_error({"a one-sided operation"}); }
  Status on_region(const wire::Region&) override { return stray(); }
  Status on_region_gone(uint64_t) override { return stray(); }
  Result<std::byte*> on_operation(const wire::OperationFrame&,
                                  std::span<const std::byte>) override {
    return stray();
  }
  Result<std::byte*> on_outcome(const wire::OutcomeFrame&, std::span<const std::byte>) override {
    return stray();
  }
  Status on_placed(wire::FrameType) override { return stray(); }

  const Ref<Arena> arena;
  const Ref<Pool> pool;
  const Ref<ReceiveMemory> fetched;
  Event event;
  Trace trace;  // off
  Sender sender;
  End* peer = nullptr;
  std::vector<Posted> unfinished;
  size_t held = 0;     // Held objects that live
  bool shares = true;  // whether its slabs can be handed to the peer
  bool keep = false;   // whether messages are held after they were recorded
  Status map_status;   // why the next segment cannot be mapped

  const uint64_t window;
  std::vector<Receiver::Cost> waited;  // what was ahead of each message that had to wait
  std::vector<Received> received;
  std::vector<std::pair<uint64_t, uint64_t>> credits;
  Status away;
  size_t fins = 0;
  std::vector<InMessage> kept;
  std::vector<Receiver::Read> reads;                         // in flight
  std::map<std::pair<uint32_t, uint32_t>, Ref<Slab>> slabs;  // what the peer may read
  const Ref<PeerArena> peer_memory;
  const Ref<Returns> returns = make_ref<Returns>();
  Receiver receiver;  // last: it reports to all of the above

 private:
  Status share(Slab& slab) {
    if (!shares) return {Code::kUnavailable, "this slab cannot be shared"};
    const std::pair key{slab.index(), slab.generation()};
    if (shared_.contains(key)) return {};
    shared_.emplace(key, true);
    Status status =
        peer->peer_memory->add(Fd(dup(slab.fd())), {slab.index(), slab.generation(), slab.size()});
    return status.code() == Code::kResourceExhausted ? Status() : status;
  }

  OutSegment segment(const Part& part, Posted& posted) {
    OutSegment out;
    out.size = part.bytes.size();
    if (part.owner == Owner::kCaller) {
      posted.lent.emplace_back(new std::byte[out.size]);
      out.data = posted.lent.back().get();
      std::copy(part.bytes.begin(), part.bytes.end(), posted.lent.back().get());
    } else if (part.owner == Owner::kHold) {
      auto memory = make_ref<Held>(part.bytes, held);
      out.data = memory->bytes().data();
      out.hold = std::move(memory);
    } else {
      out.block = block(part.owner == Owner::kBlock ? std::max(out.size, page_size()) : out.size);
      std::copy(part.bytes.begin(), part.bytes.end(), out.block->data());
      out.block->publish();
      out.data = out.block->data();
    }
    return out;
  }

  std::map<std::pair<uint32_t, uint32_t>, bool> shared_;
};

}  // namespace tw::test
