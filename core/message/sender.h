// SPDX-License-Identifier: Apache-2.0
// The sending half of the message machine: turns messages into bytes for a transport. No I/O, no
// locks: the link calls it under its send lock.
//
// Frames leave in the order of their submission, except that the chunks of large segments take
// turns and let small frames pass.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shortage.h"
#include "base/trace.h"
#include "engine/event.h"
#include "message/byte_queue.h"
#include "message/counters.h"
#include "message/message.h"
#include "message/plan.h"
#include "transport/transport.h"
#include "wire/one_sided_frames.h"

namespace tw {

// Follows one message whose segments are the caller's memory.
class Outgoing : public RefCounted {
 public:
  // `event` is told when the memory is free; `owner` keeps it alive.
  Outgoing(size_t payload_bytes, Event& event, Hold owner)
      : payload_bytes_(payload_bytes), event_(event), owner_(std::move(owner)) {}
  size_t payload_bytes() const { return payload_bytes_; }
  // True while the machine may still read the caller's memory.
  bool borrowed() const { return borrowed_.load(std::memory_order_acquire); }
  void free() {
    borrowed_.store(false, std::memory_order_release);
    event_.notify();
  }

 private:
  const size_t payload_bytes_;
  std::atomic<bool> borrowed_{true};
  Event& event_;
  const Hold owner_;
};

class Sender {
 public:
  // Makes a slab known to the peer before a descriptor into it is sent.
  using Share = std::function<Status(Slab&)>;

  explicit Sender(const Profile& profile, Share share, const wire::Limits& limits = {},
                  Trace* trace = nullptr);
  ~Sender();

  // Queues a message, and decides by the profile what nobody has decided before. `owner` and
  // `event` are needed when a segment is the caller's memory; the
  // result is then not null unless all of it has been copied already.
  //
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the message exceeds what the wire allows; nothing was
  // queued.
  Result<Ref<Outgoing>> submit(uint64_t stream, std::span<const std::byte> header,
                               std::span<OutSegment> segments, Event* event = nullptr,
                               Hold owner = {});
  // Lets the caller of a message go, whose memory lies at `segments` from now on, and is kept by
  // `memory` until nobody reads it any more. At `deadline` the rest of it is given up.
  void keep(const Ref<Outgoing>& outgoing, std::span<const OutSegment> segments, Hold memory,
            Nanos deadline);
  // Gives up a message that is only partly sent: afterwards none of the caller's memory is
  // referenced. The peer drops what it has of it, unless the last chunk has begun: then it gets the
  // whole message. True when the peer drops it.
  bool withdraw(const Ref<Outgoing>& outgoing);
  // The same for all messages of a stream; and for those past their deadline. Who waits for one
  // finds its memory free.
  void withdraw_stream(uint64_t stream);
  void withdraw_late(Nanos at);
  // The earliest deadline of a message that is kept; kForever.
  Nanos next_deadline() const;

  void credit(uint64_t stream, uint64_t bytes);
  void fin(std::span<const uint64_t> ids);
  // Ends a lease on what cannot be mapped here.
  void unmappable(uint64_t lease);
  void go_away(Code code, std::string_view reason);
  void region(const wire::Region& region);
  void region_gone(uint64_t region);

  // The peer gave these leases or rendezvous back. kInternal: it never had one of them. After
  // drop() none is out, and what still arrives is no mistake of the peer's.
  Status on_fin(std::span<const uint64_t> ids);

  // What the peer sends back, which it names as it lies in this end's arena. It stays for as long
  // as both are held, whatever becomes of the lease. kInternal: the peer does not have it on this
  // lease. kUnavailable: after drop().
  struct Lent {
    Ref<Block> block;
    std::span<const std::byte> bytes;
    Hold hold;
  };
  Result<Lent> lent(uint64_t lease, const RegionRef& region) const;

  // As on_fin(), from a peer that cannot map it: its slab is pushed from now on.
  Status on_unmappable(uint64_t lease);

  bool pending() const { return !queue_.empty() || chunk_left_ != 0 || !transfers_.empty(); }
  size_t queued_bytes() const { return queue_.size() + parked_bytes_; }
  // Payload of messages that are being pushed and nobody waits for. From any thread.
  size_t backlog() const { return backlog_.load(std::memory_order_relaxed); }
  // The next bytes to send, at most room.size() runs; sent() says how many of them the transport
  // took.
  size_t gather(std::span<iovec> room);
  void sent(size_t bytes);

  // The owners of what is no longer read, and of events that were told. Let go of them without the
  // link's locks: what they do then is their own.
  std::vector<Hold> take_spent() { return std::exchange(spent_, {}); }

  // Messages that wait until fewer before them are unfinished.
  size_t parked() const { return parked_.size(); }
  size_t leases() const { return leases_.size() + parked_leases_; }
  // What the peer has on lease; for kRead also what will be offered to it yet. From any thread.
  size_t leased_bytes() const { return leased_bytes_.load(std::memory_order_relaxed); }
  // ... without what counts in quotas: what it has of the share that a peer may have.
  size_t share_bytes() const { return share_bytes_.load(std::memory_order_relaxed); }
  // The peer is gone: everything queued, lent or awaited is let go.
  void drop();

  const SendCounters& counters() const { return counters_; }
  // Why a segment was last pushed whose slab could not be shared; ok while none was.
  const Status& unshared() const { return unshared_; }
  // Why one was last pushed that the peer might have had on lease.
  const Status& crowded() const { return crowded_; }

 private:
  struct BulkSegment {
    uint32_t index;
    const std::byte* data;
    size_t size;
    Hold hold;
    Ref<Block> block;
  };
  // The bulk segments of one message that travel as chunks or by ready-to-sends.
  struct Transfer {
    Transfer(uint64_t of, uint64_t number) : stream(of), message(number) {}
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    // Without memory for its place in a list it goes: nobody reads what somebody waits for.
    ~Transfer() {
      if (outgoing) outgoing->free();
    }
    uint64_t stream, message;
    std::vector<BulkSegment> segments{};
    size_t segment = 0, offset = 0;  // the next chunk
    uint32_t outstanding = 0;        // kRead: ready-to-sends without a FIN
    size_t unwaited = 0;             // bytes that count as backlog
    Nanos deadline = kForever;
    Ref<Outgoing> outgoing{};  // somebody waits for it
    Hold memory{};             // keeps the memory of a caller who has left
    bool open = false;         // announced, and not finished
    bool exhausted() const { return segment == segments.size(); }
    size_t next(size_t largest) const { return std::min(largest, segments[segment].size - offset); }
    void advance(size_t bytes) {
      offset += bytes;
      if (offset != segments[segment].size) return;
      ++segment;
      offset = 0;
    }
  };
  struct Lease {
    Ref<Block> block;
    std::shared_ptr<Transfer> transfer;  // kRead
    size_t bytes;
    Hold hold;
  };

  // A message that is not announced yet: too many before it are unfinished, or one of its stream
  // waits here. Its frames have no number yet.
  struct Parked {
    uint64_t stream;
    ByteQueue frames{};
    std::shared_ptr<Transfer> push{}, read{};
    // The peer has heard of none of them, and can give none back.
    std::vector<std::pair<uint64_t, Lease>> leases{};
    std::vector<Hold> returned{};     // views: their leases must not end before it is announced
    std::vector<TraceEvent> noted{};  // once it is announced
  };

  bool share(Slab& slab);
  bool parks(uint64_t stream, bool bulk) const;
  void open(std::shared_ptr<Transfer> push, std::shared_ptr<Transfer> read);
  void unpark();
  void note(TraceStep step, uint64_t stream, uint64_t message, size_t segment, uint64_t bytes,
            uint64_t id = 0) {
    if (trace_)
      trace_->note(true, step, stream, message, static_cast<uint32_t>(segment), bytes, id);
  }
  bool tracing() const { return trace_ && trace_->on(); }
  // Of a message that may have to wait: then at its turn.
  void note_in_turn(Parked* waits, TraceStep step, uint64_t stream, uint64_t message,
                    uint32_t segment, uint64_t bytes, uint64_t id = 0) {
    if (!tracing()) return;
    if (waits)
      waits->noted.push_back({0, step, true, segment, stream, 0, bytes, id});
    else
      note(step, stream, message, segment, bytes, id);
  }
  void queue_eager(Parked* waits, uint64_t stream, uint64_t message, const Step& step,
                   std::span<const OutSegment> segments);
  void issue_ready_to_sends(const std::shared_ptr<Transfer>& transfer);
  void start_chunk();
  void finish(Transfer& transfer);
  // Without memory for its place it is let go of here: a link that is lost goes on to the next.
  void spend(Hold& hold) noexcept {
    if (hold && !has_memory_for([&] { spent_.push_back(std::move(hold)); })) hold = nullptr;
  }
  void abort(const Transfer& transfer);
  // Gives up the first push that is meant: the peer drops it, or gets it whole.
  enum class Given : uint8_t { kNothing, kUp, kWhole };
  template <class Which>
  Given give_up(Which&& which);
  template <class Which>
  Given give_up_parked(Which&& which);
  void let_go(Parked& parked);
  template <class Visit>
  void each_push(Visit&& visit) const {
    if (chunk_of_) visit(*chunk_of_);
    for (const auto& transfer : transfers_) visit(*transfer);
    for (const Parked& parked : parked_)
      if (parked.push) visit(*parked.push);
  }
  void unwaited(Transfer& transfer, size_t bytes) {
    backlog_.store(backlog() + bytes - transfer.unwaited, std::memory_order_relaxed);
    transfer.unwaited = bytes;
  }

  const Profile profile_;
  const Share share_;
  const wire::Limits limits_;
  Trace* const trace_;
  uint64_t next_message_ = 1;
  uint64_t next_lease_ = 1;

  ByteQueue queue_;                                  // whole frames, small segments copied in
  std::deque<std::shared_ptr<Transfer>> transfers_;  // pushes that take turns
  size_t open_ = 0;                                  // transfers that are
  std::list<Parked> parked_;
  std::unordered_map<uint64_t, uint32_t> parked_streams_;  // how many messages of each
  // The DATA frame under way; it must end before anything else is sent once it has begun.
  std::shared_ptr<Transfer> chunk_of_;
  std::byte chunk_head_[wire::kDataFramePrefixSize];
  size_t chunk_head_left_ = 0;
  const std::byte* chunk_data_ = nullptr;
  size_t chunk_left_ = 0;  // head and data together
  bool chunk_begun_ = false;
  std::vector<std::byte> chunk_copy_;  // the rest of a withdrawn chunk

  std::unordered_map<uint64_t, Lease> leases_;
  void lease_bytes(const Block& block, size_t more) {
    leased_bytes_.store(leased_bytes() + more, std::memory_order_relaxed);
    if (!block.quota()) share_bytes_.store(share_bytes() + more, std::memory_order_relaxed);
  }
  std::atomic<size_t> leased_bytes_{0}, share_bytes_{0};  // written by one thread at a time
  std::atomic<size_t> backlog_{0};                        // written by one thread at a time
  std::unordered_map<uint32_t, uint32_t>
      unmappable_;  // slabs that the peer cannot map: generations
  std::vector<Hold> spent_;
  bool dropped_ = false;
  size_t parked_bytes_ = 0;               // of frames of all that is parked
  uint32_t parked_leases_ = 0;            // of all that is parked
  std::vector<Step> steps_;               // scratch of submit()
  std::vector<wire::SegmentInfo> infos_;  // scratch of submit()
  SendCounters counters_;
  Status unshared_, crowded_;
};

// What came back, as it is handed to the user of this end: writing there is harmless to its owner.
// RESOURCE_EXHAUSTED.
Result<InSegment> view_of(const Sender::Lent& lent);

}  // namespace tw
