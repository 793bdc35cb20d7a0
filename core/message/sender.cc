// SPDX-License-Identifier: Apache-2.0
#include "message/sender.h"

#include <algorithm>
#include <cstring>

#include "wire/bytes.h"

namespace tw {

using wire::SegmentInfo;
using wire::SegmentKind;

namespace {

constexpr uint64_t kNoNumber = UINT64_MAX;  // of a message until it is announced

}  // namespace

Sender::Sender(const Profile& profile, Share share, const wire::Limits& limits, Trace* trace)
    : profile_(profile), share_(std::move(share)), limits_(limits), trace_(trace) {}

Sender::~Sender() { drop(); }

Result<Ref<Outgoing>> Sender::submit(uint64_t stream, std::span<const std::byte> header,
                                     std::span<OutSegment> segments, Event* event, Hold owner) {
  const auto count = static_cast<uint32_t>(segments.size());
  steps_.clear();
  decide(segments, profile_.eager_bytes, profile_.coalesce_bytes);
  plan(
      count, [&](uint32_t i) { return segments[i].size; },
      [&](uint32_t i) { return *segments[i].bulk; }, profile_.coalesce_bytes, steps_);

  infos_.assign(count, SegmentInfo{});
  for (uint32_t i = 0; i < count; ++i) infos_[i].length = segments[i].size;
  const bool first_inline = !steps_.empty() && !steps_[0].bulk;
  size_t inline_bytes = 0;
  const size_t held = share_bytes();
  size_t promised = 0, fresh = 0, refused = 0, mapped = 0;
  size_t fresh_within = 0;  // as `fresh`, of blocks with a quota
  bool bulk = false;        // takes more than its announcement
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    for (uint32_t i = step.first; i < step.first + step.count; ++i) {
      SegmentInfo& info = infos_[i];
      if (!step.bulk) {
        info.kind = s == 0 ? SegmentKind::kInline : SegmentKind::kEager;
        if (s == 0) inline_bytes += info.length;
        continue;
      }
      if (segments[i].view) {
        info.kind = SegmentKind::kReturn;
        continue;
      }
      bool lendable =
          profile_.bulk != Bulk::kPush && segments[i].block && segments[i].block->leasable();
      // A peer that sits on too many leases is sent copies: it must not keep the arena from others.
      const bool within = lendable && segments[i].block->quota();
      if (lendable &&
          !segments[i].block->lendable(held + promised, within ? fresh_within : fresh)) {
        lendable = false;
        ++counters_.crowded_segments;
        crowded_ = segments[i].block->crowded(held + promised + refused,
                                              within ? fresh_within : fresh + refused);
        if (!within) refused += segments[i].block->capacity();
      }
      if (lendable && profile_.bulk == Bulk::kMap && leases() + mapped >= wire::kMaxLeases) {
        lendable = false;
        ++counters_.crowded_segments;
        crowded_ = {Code::kResourceExhausted,
                    text({"the peer holds ", wire::kMaxLeases,
                          " segments on lease, as many as a "
                          "link may have out: let go of received tensors sooner"})};
      }
      lendable = lendable && share(segments[i].block->slab());
      info.kind = !lendable                     ? SegmentKind::kPush
                  : profile_.bulk == Bulk::kMap ? SegmentKind::kMap
                                                : SegmentKind::kRead;
      mapped += info.kind == SegmentKind::kMap;
      if (info.kind != SegmentKind::kPush) {
        if (!within) promised += info.length;
        if (!segments[i].block->on_lease())
          (within ? fresh_within : fresh) += segments[i].block->capacity();
      }
      bulk = bulk || info.kind != SegmentKind::kMap;
    }
  }
  if (Status status = check_message(infos_, header.size(), limits_); !status.ok()) return status;

  std::list<Parked> parked;  // one, or none
  Parked* const waits =
      parks(stream, bulk) ? &parked.emplace_back(Parked{.stream = stream}) : nullptr;
  const uint64_t message = waits ? kNoNumber : next_message_++;
  ByteQueue& queue = waits ? waits->frames : queue_;
  std::shared_ptr<Transfer> push, read;
  bool borrows = false;
  size_t returned = 0;
  for (uint32_t i = 0; i < count; ++i) {
    SegmentInfo& info = infos_[i];
    OutSegment& segment = segments[i];
    if (info.kind == SegmentKind::kMap) {
      const RegionRef region = segment.block->region(segment.data, segment.size);
      info.map = {region.slab, region.generation, region.offset, next_lease_};
      Lease lease{segment.block, nullptr, segment.size, segment.hold};
      if (waits) {
        waits->leases.emplace_back(next_lease_++, std::move(lease));
      } else {
        leases_.emplace(next_lease_++, std::move(lease));
        segment.block->lent();
      }
      lease_bytes(*segment.block, segment.size);
      ++counters_.mapped_segments;
    } else if (info.kind == SegmentKind::kReturn) {
      // The view's FIN must come after this announcement.
      const RegionRef region = segment.view->region({segment.data, segment.size});
      info.map = {region.slab, region.generation, region.offset, segment.view->id()};
      if (waits) waits->returned.emplace_back(segment.view);
      ++returned;
      ++counters_.returned_segments;
    } else if (info.kind == SegmentKind::kPush || info.kind == SegmentKind::kRead) {
      auto& transfer = info.kind == SegmentKind::kPush ? push : read;
      if (!transfer) transfer = std::make_shared<Transfer>(stream, message);
      borrows = borrows || (!segment.block && !segment.hold);
      transfer->segments.push_back({i, segment.data, segment.size, segment.hold, segment.block});
      if (info.kind == SegmentKind::kRead) lease_bytes(*segment.block, segment.size);
      ++(info.kind == SegmentKind::kPush ? counters_.pushed_segments : counters_.read_segments);
    }
  }

  std::byte* out = queue.extend(wire::message_prefix_size(infos_) + header.size() + inline_bytes);
  out = wire::encode_message_prefix(out, stream, message, infos_, header.size());
  note_in_turn(waits, TraceStep::kMessage, stream, message, count, inline_bytes);
  if (mapped + returned != 0 && tracing())
    for (uint32_t i = 0; i < count; ++i)
      if (const SegmentInfo& info = infos_[i]; wire::described(info.kind))
        note_in_turn(waits, info.kind == SegmentKind::kMap ? TraceStep::kMap : TraceStep::kReturn,
                     stream, message, i, info.length, info.map.lease);
  if (!header.empty()) std::memcpy(out, header.data(), header.size());
  out += header.size();
  if (first_inline) {
    for (uint32_t i = 0; i < steps_[0].count; ++i) {
      if (segments[i].size) std::memcpy(out, segments[i].data, segments[i].size);
      out += segments[i].size;
    }
    counters_.inline_segments += steps_[0].count;
  }
  for (size_t s = 1; s < steps_.size(); ++s)
    if (!steps_[s].bulk) queue_eager(waits, stream, message, steps_[s], segments);

  ++counters_.messages;
  size_t bytes = 0;
  for (const SegmentInfo& info : infos_) bytes += info.length;
  counters_.bytes += bytes;

  Ref<Outgoing> outgoing;
  if (borrows) outgoing = make_ref<Outgoing>(bytes, *event, std::move(owner));
  if (push) {
    push->outgoing = outgoing;
    if (!outgoing) unwaited(*push, bytes);
  }
  if (!waits) {
    if (bulk) open(std::move(push), std::move(read));
    return outgoing;
  }
  waits->push = std::move(push);
  waits->read = std::move(read);
  ++parked_streams_[stream];
  for (const auto& [id, lease] : waits->leases) lease.block->lent();
  parked_leases_ += static_cast<uint32_t>(waits->leases.size());
  parked_bytes_ += waits->frames.size();
  parked_.splice(parked_.end(), parked);
  return outgoing;
}

bool Sender::parks(uint64_t stream, bool bulk) const {
  return (bulk && open_ >= wire::kMaxOpenMessages) ||
         (!parked_streams_.empty() && parked_streams_.contains(stream));
}

// Of a message that has just been announced.
void Sender::open(std::shared_ptr<Transfer> push, std::shared_ptr<Transfer> read) {
  if (push) {
    push->open = true;
    ++open_;
    transfers_.push_back(std::move(push));
  }
  if (read) {
    read->open = true;
    ++open_;
    issue_ready_to_sends(read);
  }
}

// Announces what waits, in its order, as far as may be.
void Sender::unpark() {
  while (!parked_.empty()) {
    Parked& next = parked_.front();
    if ((next.push || next.read) && open_ >= wire::kMaxOpenMessages) return;
    for (; !next.leases.empty(); next.leases.pop_back(), --parked_leases_) {
      auto& [id, lease] = next.leases.back();
      leases_[id] = std::move(lease);
    }
    const uint64_t message = next_message_++;
    wire::renumber(next.frames.bytes(), message);
    queue_.append(next.frames.bytes());
    parked_bytes_ -= next.frames.size();
    for (const TraceEvent& event : next.noted)
      note(event.step, event.stream, message, event.segment, event.bytes, event.id);
    for (const auto& transfer : {next.push, next.read})
      if (transfer) transfer->message = message;
    if (auto at = parked_streams_.find(next.stream); --at->second == 0) parked_streams_.erase(at);
    const auto push = std::move(next.push), read = std::move(next.read);
    for (Hold& view : next.returned) spend(view);
    parked_.pop_front();
    open(push, read);
  }
}

bool Sender::share(Slab& slab) {
  const auto refused = unmappable_.find(slab.index());
  Status status = refused != unmappable_.end() && refused->second == slab.generation()
                      ? Status(Code::kResourceExhausted, "the peer has no means to map the slab")
                      : share_(slab);
  if (status.ok()) return true;
  ++counters_.unshared_segments;
  unshared_ = std::move(status);
  return false;
}

void Sender::queue_eager(Parked* waits, uint64_t stream, uint64_t message, const Step& step,
                         std::span<const OutSegment> segments) {
  uint32_t bytes = 0;
  for (uint32_t i = step.first; i < step.first + step.count; ++i)
    bytes += static_cast<uint32_t>(segments[i].size);
  // The announcement says all there is to say of empty segments.
  if (bytes == 0) return;
  std::byte* out = (waits ? waits->frames : queue_).extend(wire::kEagerPrefixSize + bytes);
  out = wire::encode_eager_prefix(out, stream, message, step.first,
                                  static_cast<uint16_t>(step.count), bytes);
  for (uint32_t i = step.first; i < step.first + step.count; ++i) {
    if (segments[i].size) std::memcpy(out, segments[i].data, segments[i].size);
    out += segments[i].size;
  }
  ++counters_.eager_frames;
  note_in_turn(waits, TraceStep::kEager, stream, message, step.first, bytes);
}

void Sender::issue_ready_to_sends(const std::shared_ptr<Transfer>& transfer) {
  while (!transfer->exhausted() && transfer->outstanding < profile_.chunks_in_flight) {
    const BulkSegment& segment = transfer->segments[transfer->segment];
    const size_t length = transfer->next(profile_.chunk_bytes);
    const RegionRef region = segment.block->region(segment.data + transfer->offset, length);
    wire::ReadOffer offer;
    offer.slab = region.slab;
    offer.generation = region.generation;
    offer.offset = region.offset;
    offer.length = length;
    offer.segment_offset = transfer->offset;
    offer.rendezvous = next_lease_++;
    wire::encode_rts(queue_.extend(wire::kRtsFrameSize), transfer->stream, transfer->message,
                     segment.index, offer);
    note(TraceStep::kRts, transfer->stream, transfer->message, segment.index, length,
         offer.rendezvous);
    segment.block->lent();
    leases_.emplace(offer.rendezvous, Lease{segment.block, transfer, length, nullptr});
    ++transfer->outstanding;
    ++counters_.ready_to_sends;
    transfer->advance(length);
  }
}

Status Sender::on_fin(std::span<const uint64_t> ids) {
  if (dropped_) return {};
  for (const uint64_t id : ids) {
    auto it = leases_.find(id);
    if (it == leases_.end())
      return wire::protocol_error({"FIN frame: id is ", id, ", which is not out"});
    Lease lease = std::move(it->second);
    lease.block->returned();
    leases_.erase(it);
    lease_bytes(*lease.block, -lease.bytes);
    spend(lease.hold);
    if (!lease.transfer) continue;
    --lease.transfer->outstanding;
    issue_ready_to_sends(lease.transfer);
    if (lease.transfer->outstanding == 0) finish(*lease.transfer);
  }
  unpark();
  return {};
}

Result<Sender::Lent> Sender::lent(uint64_t id, const RegionRef& region) const {
  if (dropped_) return Status(Code::kUnavailable, "the link has ended");
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.transfer)
    return wire::protocol_error({"MESSAGE frame: lease is ", id, ", which is not out"});
  const Block& block = *it->second.block;
  const RegionRef whole = block.region();
  if (region.slab != whole.slab || region.generation != whole.generation ||
      region.offset < whole.offset || region.length > whole.length ||
      region.offset - whole.offset > whole.length - region.length)
    return wire::protocol_error({"MESSAGE frame: ", region.length, " bytes at offset ",
                                 region.offset, " of slab ", region.slab,
                                 " do not lie in the block of lease ", id});
  return Lent{it->second.block,
              {block.data() + (region.offset - whole.offset), region.length},
              it->second.hold};
}

Status Sender::on_unmappable(uint64_t lease) {
  if (dropped_) return {};
  const auto it = leases_.find(lease);
  if (it == leases_.end() || it->second.transfer)
    return wire::protocol_error({"UNMAPPABLE frame: lease is ", lease, ", which is not out"});
  const Slab& slab = it->second.block->slab();
  unmappable_.insert_or_assign(slab.index(), slab.generation());
  ++counters_.unmappable;
  return on_fin({&lease, 1});
}

void Sender::credit(uint64_t stream, uint64_t bytes) {
  wire::encode_credit(queue_.extend(wire::kCreditFrameSize), stream, bytes);
  note(TraceStep::kCredit, stream, 0, 0, bytes);
}

void Sender::fin(std::span<const uint64_t> ids) {
  while (!ids.empty()) {
    const size_t n = std::min(ids.size(), wire::kMaxFinIds);
    wire::encode_fin(queue_.extend(wire::fin_frame_size(n)), ids.first(n));
    for (const uint64_t id : ids.first(n)) note(TraceStep::kFin, 0, 0, 0, 0, id);
    ids = ids.subspan(n);
  }
}

void Sender::unmappable(uint64_t lease) {
  wire::encode_unmappable(queue_.extend(wire::kUnmappableFrameSize), lease);
  note(TraceStep::kFin, 0, 0, 0, 0, lease);
}

void Sender::go_away(Code code, std::string_view reason) {
  std::byte frame[wire::kMaxGoAwayFrameSize];
  const std::byte* end = wire::encode_goaway(frame, code, reason);
  queue_.append({frame, static_cast<size_t>(end - frame)});
  note(TraceStep::kGoAway, 0, 0, 0, 0);
}

void Sender::region(const wire::Region& region) {
  wire::encode_region(queue_.extend(wire::kRegionFrameSize), region);
}

void Sender::region_gone(uint64_t region) {
  wire::encode_region_gone(queue_.extend(wire::kRegionGoneFrameSize), region);
}

void Sender::start_chunk() {
  std::shared_ptr<Transfer> transfer = std::move(transfers_.front());
  transfers_.pop_front();
  const BulkSegment& segment = transfer->segments[transfer->segment];
  const size_t length = transfer->next(profile_.chunk_bytes);
  wire::encode_data_prefix(chunk_head_, transfer->stream, transfer->message, segment.index,
                           transfer->offset, static_cast<uint32_t>(length));
  note(TraceStep::kData, transfer->stream, transfer->message, segment.index, length);
  chunk_data_ = segment.data + transfer->offset;
  chunk_head_left_ = sizeof chunk_head_;
  chunk_left_ = sizeof chunk_head_ + length;
  chunk_begun_ = false;
  chunk_of_ = std::move(transfer);
}

void Sender::finish(Transfer& transfer) {
  if (std::exchange(transfer.open, false)) --open_;
  if (transfer.outgoing) transfer.outgoing->free();
  Hold told(std::move(transfer.outgoing));
  spend(told);
  unwaited(transfer, 0);
  spend(transfer.memory);
  for (BulkSegment& segment : transfer.segments) spend(segment.hold);
}

size_t Sender::gather(std::span<iovec> room) {
  if (chunk_left_ == 0 && !transfers_.empty()) start_chunk();
  size_t n = 0;
  const auto add = [&](const std::byte* data, size_t size) {
    if (size != 0 && n < room.size()) room[n++] = {const_cast<std::byte*>(data), size};
  };
  const auto add_chunk = [&] {
    add(chunk_head_ + sizeof chunk_head_ - chunk_head_left_, chunk_head_left_);
    add(chunk_data_, chunk_left_ - chunk_head_left_);
  };
  if (chunk_left_ != 0 && chunk_begun_) add_chunk();
  add(queue_.data(), queue_.size());
  if (chunk_left_ != 0 && !chunk_begun_) add_chunk();
  return n;
}

void Sender::sent(size_t bytes) {
  const auto take_chunk = [&] {
    const size_t n = std::min(bytes, chunk_left_);
    if (n == 0) return;
    bytes -= n;
    chunk_begun_ = true;
    const size_t head = std::min(n, chunk_head_left_);
    chunk_head_left_ -= head;
    chunk_data_ += n - head;
    chunk_left_ -= n;
    if (chunk_left_ != 0) return;
    ++counters_.pushed_chunks;
    chunk_copy_ = {};
    chunk_begun_ = false;
    std::shared_ptr<Transfer> transfer = std::move(chunk_of_);
    if (!transfer) return;  // withdrawn
    transfer->advance(transfer->next(profile_.chunk_bytes));
    if (transfer->exhausted())
      finish(*transfer);
    else
      transfers_.push_back(std::move(transfer));
  };
  if (chunk_begun_) take_chunk();
  const size_t queued = std::min(bytes, queue_.size());
  queue_.consume(queued);
  bytes -= queued;
  take_chunk();
  if (!parked_.empty()) unpark();
}

void Sender::keep(const Ref<Outgoing>& outgoing, std::span<const OutSegment> segments, Hold memory,
                  Nanos deadline) {
  each_push([&](Transfer& transfer) {
    if (transfer.outgoing.get() != outgoing.get()) return;
    for (BulkSegment& segment : transfer.segments) {
      const std::byte* const now_at = segments[segment.index].data;
      if (&transfer == chunk_of_.get() && &segment == &transfer.segments[transfer.segment])
        chunk_data_ = now_at + (chunk_data_ - segment.data);
      segment.data = now_at;
    }
    outgoing->free();
    transfer.outgoing = nullptr;
    transfer.memory = std::move(memory);
    transfer.deadline = deadline;
    unwaited(transfer, outgoing->payload_bytes());
  });
  spend(memory);  // where all of it has been sent meanwhile
}

bool Sender::withdraw(const Ref<Outgoing>& outgoing) {
  return outgoing->borrowed() && give_up([&](const Transfer& transfer) {
                                   return transfer.outgoing.get() == outgoing.get();
                                 }) == Given::kUp;
}

void Sender::withdraw_stream(uint64_t stream) {
  const auto which = [&](const Transfer& transfer) { return transfer.stream == stream; };
  while (give_up(which) != Given::kNothing) {
  }
}

void Sender::withdraw_late(Nanos at) {
  const auto which = [&](const Transfer& transfer) { return transfer.deadline <= at; };
  while (give_up(which) != Given::kNothing) {
  }
}

Nanos Sender::next_deadline() const {
  Nanos next = kForever;
  each_push([&](const Transfer& transfer) { next = std::min(next, transfer.deadline); });
  return next;
}

template <class Which>
Sender::Given Sender::give_up(Which&& which) {
  std::shared_ptr<Transfer> transfer;
  if (chunk_of_ && which(*chunk_of_)) {
    if (chunk_begun_) {
      // The peer has seen this frame's head: its length must follow. Without memory for that
      // nothing has changed yet.
      const size_t data = chunk_left_ - chunk_head_left_;
      chunk_copy_.assign(chunk_data_, chunk_data_ + data);
      chunk_data_ = chunk_copy_.data();
    }
    transfer = std::move(chunk_of_);
    if (chunk_begun_) {
      transfer->advance(transfer->next(profile_.chunk_bytes));
    } else {
      chunk_left_ = chunk_head_left_ = 0;
    }
  } else {
    const auto waiting =
        std::find_if(transfers_.begin(), transfers_.end(),
                     [&](const std::shared_ptr<Transfer>& other) { return which(*other); });
    if (waiting == transfers_.end()) return give_up_parked(which);
    transfer = std::move(*waiting);
    transfers_.erase(waiting);
  }
  // With its last chunk the message is whole at the peer: there is nothing left to give up.
  const bool gives_up = !transfer->exhausted();
  if (gives_up) abort(*transfer);
  finish(*transfer);
  unpark();
  return gives_up ? Given::kUp : Given::kWhole;
}

// The peer has heard nothing of it.
template <class Which>
Sender::Given Sender::give_up_parked(Which&& which) {
  const auto at = std::find_if(parked_.begin(), parked_.end(), [&](const Parked& parked) {
    return parked.push && which(*parked.push);
  });
  if (at == parked_.end()) return Given::kNothing;
  parked_leases_ -= static_cast<uint32_t>(at->leases.size());
  let_go(*at);
  if (auto stream = parked_streams_.find(at->stream); --stream->second == 0)
    parked_streams_.erase(stream);
  parked_bytes_ -= at->frames.size();
  parked_.erase(at);
  unpark();
  return Given::kUp;
}

void Sender::let_go(Parked& parked) {
  for (auto& [id, lease] : parked.leases) {
    lease.block->returned();
    lease_bytes(*lease.block, -lease.bytes);
    spend(lease.hold);
  }
  if (parked.read)
    for (const BulkSegment& segment : parked.read->segments)
      lease_bytes(*segment.block, -segment.size);
  for (const auto& transfer : {parked.push, parked.read})
    if (transfer) finish(*transfer);
  for (Hold& view : parked.returned) spend(view);
}

void Sender::abort(const Transfer& transfer) {
  // What the peer may read already stays until its FIN; the rest must not be offered any more.
  for (auto& [id, lease] : leases_) {
    if (!lease.transfer || lease.transfer->message != transfer.message) continue;
    for (Transfer& rest = *lease.transfer; !rest.exhausted();) {
      const size_t unoffered = rest.next(SIZE_MAX);
      lease_bytes(*rest.segments[rest.segment].block, -unoffered);
      rest.advance(unoffered);
    }
  }
  wire::encode_abort(queue_.extend(wire::kAbortFrameSize), transfer.stream, transfer.message);
  note(TraceStep::kAbort, transfer.stream, transfer.message, 0, 0);
}

void Sender::drop() {
  dropped_ = true;
  queue_.consume(queue_.size());
  chunk_left_ = chunk_head_left_ = 0;
  chunk_begun_ = false;
  if (chunk_of_) finish(*chunk_of_);
  chunk_of_ = nullptr;
  chunk_copy_ = {};
  for (const auto& transfer : transfers_) finish(*transfer);
  transfers_.clear();
  for (Parked& parked : parked_) let_go(parked);
  parked_.clear();
  parked_leases_ = 0;
  parked_bytes_ = 0;
  parked_streams_.clear();
  for (auto& [id, lease] : leases_) {
    lease.block->returned();
    spend(lease.hold);
    if (lease.transfer) finish(*lease.transfer);
  }
  leases_.clear();
  leased_bytes_.store(0, std::memory_order_relaxed);
  share_bytes_.store(0, std::memory_order_relaxed);
}

namespace {

// Keeps what came back for as long as it is viewed here.
class Reclaimed final : public LeaseReturn {
 public:
  explicit Reclaimed(const Sender::Lent& lent) : block_(lent.block), hold_(lent.hold) {}
  void lease_done(uint64_t) noexcept override {}

 private:
  const Ref<Block> block_;
  const Hold hold_;
};

}  // namespace

Result<InSegment> view_of(const Sender::Lent& lent) {
  const auto located = lent.block->slab().harmless(lent.bytes);
  if (!located) return located.status();
  auto view = LeasedView::make(*located, make_ref<Reclaimed>(lent), 0);
  if (!view) return view.status();
  InSegment in;
  in.data = (*view)->bytes().data();
  in.size = lent.bytes.size();
  in.hold = std::move(*view);
  return in;
}

}  // namespace tw
