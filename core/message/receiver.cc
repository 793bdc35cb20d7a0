// SPDX-License-Identifier: Apache-2.0
#include "message/receiver.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "wire/bytes.h"

namespace tw {

using wire::SegmentInfo;
using wire::SegmentKind;

namespace {

constexpr size_t kStagingBytes = 64 << 10;
constexpr size_t kAheadBytes = 1 << 10;  // of that, behind a chunk
constexpr size_t kMaxUnfinished = 2 * wire::kMaxOpenMessages;
// Of all messages together; senders have a few out for each.
constexpr size_t kMaxOffers = 262'144;
// Scratch for more segments than this is not kept.
constexpr size_t kKeptInfos = 1024;

// In the words of the wire codec. Cold on purpose: the text is made only when a peer misbehaves.
[[gnu::cold, gnu::noinline]] Status bad(std::string_view frame, std::string_view field,
                                        uint64_t value, std::initializer_list<Piece> why) {
  return wire::protocol_error({frame, " frame: ", field, " is ", value, ", ", text(why)});
}

constexpr size_t placed_prefix(wire::FrameType type) {
  return type == wire::FrameType::kOperation ? wire::kOperationPrefixSize
                                             : wire::kOutcomePrefixSize;
}

}  // namespace

Receiver::Receiver(Pool& pool, ReceiveMemory& fetched, uint64_t max_message, Sink& sink,
                   const wire::Limits& limits, Trace* trace)
    : pool_(pool),
      fetched_(fetched),
      max_message_(max_message),
      sink_(sink),
      limits_(limits),
      trace_(trace) {}

size_t Receiver::buffers(std::span<iovec, 2> room) {
  if (!staging_) {
    staging_.reset(new std::byte[kStagingBytes]);
    staging_size_ = kStagingBytes;
  }
  if (chunk_left_ == 0) {
    room[0] = {staging_.get() + staged_, staging_size_ - staged_};
    return 1;
  }
  if (!chunk_to_) {
    room[0] = {staging_.get(), std::min(chunk_left_, staging_size_)};
    return 1;
  }
  if (chunk_room_ < chunk_left_) {
    room[0] = {chunk_to_, chunk_room_};
    return 1;
  }
  // Heads of what follows, and little of its payload, which would be copied once more from here.
  room[0] = {chunk_to_, chunk_left_};
  room[1] = {staging_.get(), kAheadBytes};
  return 2;
}

Status Receiver::received(size_t bytes) {
  Status status = take(bytes);
  // A message that was refused has made room.
  if (status.ok()) resume_offers();
  return status;
}

Status Receiver::take(size_t bytes) {
  if (chunk_left_ != 0) {
    // While a chunk is under way the staging area holds nothing.
    const size_t n = std::min(bytes, chunk_left_);
    if (chunk_to_) {
      chunk_to_ += n;
      chunk_room_ -= n;
    }
    chunk_left_ -= n;
    bytes -= n;
    if (chunk_left_ != 0) {
      if (chunk_to_ && chunk_room_ == 0) more_room();
      return {};
    }
    if (Status status = end_chunk(); !status.ok()) return status;
  }
  staged_ += bytes;
  return parse();
}

Status Receiver::parse() {
  while (staged_ - parsed_ >= wire::kFrameHeaderSize) {
    const std::byte* const at = staging_.get() + parsed_;
    auto header = wire::decode_frame_header(
        std::span<const std::byte, wire::kFrameHeaderSize>(at, wire::kFrameHeaderSize), limits_);
    if (!header) return header.status();
    const size_t available = staged_ - parsed_ - wire::kFrameHeaderSize;
    if (header->type == wire::FrameType::kData) {
      if (available < wire::kDataPrefixSize) break;
      if (Status status = begin_chunk(*header); !status.ok()) return status;
      if (chunk_left_ != 0) return {};
      continue;
    }
    if (header->type == wire::FrameType::kOperation || header->type == wire::FrameType::kOutcome) {
      if (available < placed_prefix(header->type)) break;
      if (Status status = begin_placing(*header); !status.ok()) return status;
      if (chunk_left_ != 0) return {};
      continue;
    }
    if (available < header->body_length) {
      const size_t needed = wire::kFrameHeaderSize + header->body_length;
      if (staged_ - parsed_ == staging_size_) {
        // It grows with what has come, not with what is announced.
        const size_t size = std::min(needed, 2 * staging_size_);
        std::unique_ptr<std::byte[]> grown(new std::byte[size]);
        std::memcpy(grown.get(), at, staged_);
        staging_ = std::move(grown);
        staging_size_ = size;
      }
      break;
    }
    if (Status status = frame(*header, {at + wire::kFrameHeaderSize, header->body_length});
        !status.ok())
      return status;
    parsed_ += wire::kFrameHeaderSize + header->body_length;
  }
  if (parsed_ == staged_) {
    parsed_ = staged_ = 0;
    if (staging_size_ > kStagingBytes) staging_.reset();
  } else if (parsed_ != 0) {
    std::memmove(staging_.get(), staging_.get() + parsed_, staged_ - parsed_);
    staged_ -= parsed_;
    parsed_ = 0;
  }
  return {};
}

Status Receiver::frame(const wire::FrameHeader& header, std::span<const std::byte> body) {
  switch (header.type) {
    case wire::FrameType::kMessage:
      return message_frame(header, body);
    case wire::FrameType::kEager:
      return eager_frame(header, body);
    case wire::FrameType::kRts:
      return rts_frame(header, body);
    case wire::FrameType::kFin: {
      auto ids = wire::decode_fin_body(header, body);
      if (!ids) return ids.status();
      uint64_t list[wire::kMaxFinIds];
      for (size_t i = 0; i < ids->size(); ++i) {
        list[i] = (*ids)[i];
        note(TraceStep::kFin, header, 0, 0, list[i]);
      }
      return sink_.on_fin({list, ids->size()});
    }
    case wire::FrameType::kCredit: {
      auto bytes = wire::decode_credit_body(header, body);
      if (!bytes) return bytes.status();
      note(TraceStep::kCredit, header, 0, *bytes);
      return sink_.on_credit(header.stream, *bytes);
    }
    case wire::FrameType::kUnmappable: {
      auto lease = wire::decode_unmappable_body(header, body);
      if (!lease) return lease.status();
      note(TraceStep::kFin, header, 0, 0, *lease);
      return sink_.on_unmappable(*lease);
    }
    case wire::FrameType::kAbort:
      return abort(header);
    case wire::FrameType::kGoAway: {
      auto away = wire::decode_goaway_body(header, body);
      if (!away) return away.status();
      note(TraceStep::kGoAway, header, 0, 0);
      sink_.on_go_away(away->code, away->reason);
      return {};
    }
    case wire::FrameType::kRegion: {
      auto region = wire::decode_region_body(header, body);
      return region ? sink_.on_region(*region) : region.status();
    }
    case wire::FrameType::kRegionGone: {
      auto region = wire::decode_region_gone_body(header, body);
      return region ? sink_.on_region_gone(*region) : region.status();
    }
    case wire::FrameType::kData:
    case wire::FrameType::kOperation:
    case wire::FrameType::kOutcome:
      break;  // parse() takes these
  }
  return {Code::kInternal, "local error: a frame was not taken by parse()"};
}

Status Receiver::message_frame(const wire::FrameHeader& header, std::span<const std::byte> body) {
  if (header.message <= last_message_)
    return bad("MESSAGE", "message", header.message,
               {"not above ", last_message_, ", the number of the one before"});
  last_message_ = header.message;
  infos_.resize(header.segment_count);
  auto head = wire::decode_message_body(header, body, limits_, infos_);
  if (!head) return head.status();
  note(TraceStep::kMessage, header, infos_.size(), head->inline_bytes.size());
  if (trace_ && trace_->on())
    for (size_t i = 0; i < infos_.size(); ++i)
      if (const SegmentInfo& info = infos_[i]; wire::described(info.kind))
        note(info.kind == SegmentKind::kMap ? TraceStep::kMap : TraceStep::kReturn, header, i,
             info.length, info.map.lease);
  const bool all_inline = std::all_of(infos_.begin(), infos_.end(), [](const SegmentInfo& info) {
    return info.kind == SegmentKind::kInline;
  });
  Status status =
      all_inline && head->total_bytes <= max_message_ && !waiting_.contains(header.stream)
          ? deliver(packed(header, *head))
          : announce(header, *head, all_inline);
  if (infos_.size() > kKeptInfos) infos_ = {};
  return status;
}

// The hot path of small calls: one allocation.
Ref<Parcel> Receiver::packed(const wire::FrameHeader& header, const wire::MessageHead& head) {
  auto parcel = Parcel::whole(header.stream, head.header, infos_, head.inline_bytes);
  if (parcel) {
    counters_.inline_segments += infos_.size();
    return parcel;
  }
  ++counters_.refused;
  return Parcel::refused(header.stream, head.header, head.total_bytes,
                         {Code::kResourceExhausted,
                          text({"no memory for a message of ", head.total_bytes, " bytes"})});
}

Status Receiver::announce(const wire::FrameHeader& header, const wire::MessageHead& head,
                          bool all_inline) {
  Incoming incoming;
  for (const SegmentInfo& info : infos_) {
    if (info.kind == SegmentKind::kEager) incoming.eager_left += info.length;
    if (info.kind != SegmentKind::kInline && !wire::described(info.kind))
      incoming.left += info.length;
  }
  const bool unfinished = incoming.left != 0;
  auto waiting = waiting_.find(header.stream);
  const bool waits = unfinished || waiting != waiting_.end();
  Cost cost;
  if (waits) {
    if (unfinished && unfinished_.size() == kMaxUnfinished)
      return bad("MESSAGE", "message", header.message,
                 {"while ", kMaxUnfinished, " messages before it have not ended"});
    auto judged = sink_.on_wait(header.stream, head.header, head.total_bytes,
                                waiting == waiting_.end() ? Cost{} : waiting->second.cost);
    if (!judged) return judged.status();
    cost = *judged;
  }
  if (all_inline && head.total_bytes <= max_message_) {
    incoming.parcel = packed(header, head);
  } else {
    incoming.parcel = Parcel::announced(header.stream, head.header, infos_);
    if (unfinished) {
      incoming.kinds.reset(new uint8_t[infos_.size()]);
      for (size_t i = 0; i < infos_.size(); ++i)
        incoming.kinds[i] = static_cast<uint8_t>(infos_[i].kind);
    }
    if (Status status = take_in(incoming, head); !status.ok()) return status;
  }
  if (!waits) return deliver(std::move(incoming.parcel));
  Ref<Parcel> parcel = incoming.parcel;
  parcel->set_cost(cost);
  parcel->set_unfinished(unfinished);
  if (unfinished) unfinished_.emplace(header.message, std::move(incoming));
  if (waiting == waiting_.end()) waiting = waiting_.try_emplace(header.stream).first;
  waiting->second.add(cost);
  waiting->second.parcels.push(std::move(parcel));
  return {};
}

// What has come with the announcement: inline bytes and mapped segments.
Status Receiver::take_in(Incoming& incoming, const wire::MessageHead& head) {
  Parcel& parcel = *incoming.parcel;
  if (head.total_bytes > max_message_)
    refuse(incoming,
           {Code::kResourceExhausted,
            text({"a message of ", head.total_bytes,
                  " bytes is larger than the receiver's limit of ", max_message_, " bytes"})});
  else if (Status status = take_small(incoming); !status.ok())
    refuse(incoming, std::move(status));
  const std::byte* from = head.inline_bytes.data();
  for (size_t i = 0; i < infos_.size(); ++i) {
    const SegmentInfo& info = infos_[i];
    if (info.kind == SegmentKind::kInline) {
      if (parcel.ok()) {
        place_small(incoming, i, from);
        ++counters_.inline_segments;
      }
      from += info.length;
    } else if (wire::described(info.kind)) {
      // Also when refused: letting go of the view gives the lease of a mapped one back.
      const bool mapped = info.kind == SegmentKind::kMap;
      auto view = mapped ? sink_.on_map(info) : sink_.on_return(info);
      if (!view && view.status().code() != Code::kResourceExhausted) return view.status();
      if (!parcel.ok()) continue;
      if (view) {
        ++(mapped ? counters_.mapped_segments : counters_.returned_segments);
        parcel.place(i, view->data, std::move(view->hold));
      } else {
        refuse(incoming, view.status());
      }
    } else if (info.kind == SegmentKind::kEager) {
      if (parcel.ok()) ++counters_.eager_segments;
    }
  }
  return {};
}

Result<Receiver::Incoming*> Receiver::find(const wire::FrameHeader& header,
                                           std::string_view frame) {
  auto it = unfinished_.find(header.message);
  if (it == unfinished_.end())
    return bad(frame, "message", header.message, {"which is not under way"});
  const uint64_t stream = it->second.parcel->stream();
  if (stream != header.stream)
    return bad(frame, "stream", header.stream,
               {"but message ", header.message, " is on stream ", stream});
  return &it->second;
}

Status Receiver::eager_frame(const wire::FrameHeader& header, std::span<const std::byte> body) {
  auto found = find(header, "EAGER");
  if (!found) return found.status();
  note(TraceStep::kEager, header, header.first_segment, body.size());
  Incoming& incoming = **found;
  const Parcel& parcel = *incoming.parcel;
  const size_t end = size_t{header.first_segment} + header.segment_count;
  if (end > parcel.segments())
    return bad("EAGER", "first_segment", header.first_segment,
               {"with ", header.segment_count, " segments, but message ", header.message, " has ",
                parcel.segments()});
  size_t left = body.size(), used = incoming.small_used, fresh = 0;
  for (size_t i = header.first_segment; i < end; ++i) {
    if (incoming.kind(i) != SegmentKind::kEager || i < incoming.next_eager)
      return bad("EAGER", "first_segment", header.first_segment,
                 {"but segment ", i, " is not due in an EAGER frame"});
    const size_t length = parcel.size_of(i);
    if (length > left)
      return bad("EAGER", "body_length", header.body_length, {"too short for its segments"});
    left -= length;
    used = align_small(used, length) + length;
    fresh = align_small(fresh, length) + length;
  }
  if (left != 0)
    return bad("EAGER", "body_length", header.body_length,
               {left, " bytes too long for its segments"});
  incoming.next_eager = static_cast<uint32_t>(end);
  if (parcel.ok() && used > incoming.small_size) {
    // As much as has come before, so that there are few of them.
    const size_t more = std::min<size_t>(incoming.small_taken, 2 * incoming.eager_left);
    if (Status status = small_run(incoming, std::max(fresh, more)); !status.ok())
      refuse(incoming, std::move(status));
  }
  if (parcel.ok()) {
    const std::byte* from = body.data();
    for (size_t i = header.first_segment; i < end; ++i) {
      place_small(incoming, i, from);
      from += parcel.size_of(i);
    }
  }
  incoming.eager_left -= body.size();
  if (incoming.eager_ahead != 0) {
    incoming.eager_ahead -= body.size();
    ahead_ -= body.size();
  }
  return arrived(incoming, header.message, body.size());
}

// The message whose segment a DATA or RTS frame continues, by `length` bytes at `offset`.
Result<Receiver::Incoming*> Receiver::next_chunk(const wire::FrameHeader& header, SegmentKind kind,
                                                 uint64_t offset, uint64_t length) {
  const bool pushed = kind == SegmentKind::kPush;
  const std::string_view frame = pushed ? "DATA" : "RTS";
  auto found = find(header, frame);
  if (!found) return found.status();
  Incoming& incoming = **found;
  const Parcel& parcel = *incoming.parcel;
  const uint32_t at = header.first_segment;
  if (at >= parcel.segments())
    return bad(frame, "first_segment", at,
               {"but message ", header.message, " has ", parcel.segments(), " segments"});
  if (incoming.kind(at) != kind)
    return bad(frame, "first_segment", at,
               {"which was not announced as ", pushed ? "PUSH" : "READ"});
  Cursor& cursor = pushed ? incoming.pushed : incoming.read;
  if (at != cursor.segment) {
    // On to the next one, if the one before is complete.
    uint32_t due = cursor.segment;
    const auto is_one = [&](uint32_t i) { return incoming.kind(i) == kind; };
    if (!is_one(due) || cursor.offered == parcel.size_of(due)) do
        ++due;
      while (due < parcel.segments() && !is_one(due));
    if (at != due) return bad(frame, "first_segment", at, {"but segment ", due, " is due"});
    cursor = {at, 0};
  }
  if (offset != cursor.offered)
    return bad(frame, pushed ? "offset" : "segment_offset", offset,
               {"but segment ", at, " goes on at ", cursor.offered});
  if (length > parcel.size_of(at) - offset)
    return bad(frame, pushed ? "body_length" : "length", pushed ? header.body_length : length,
               {"beyond the end of segment ", at});
  cursor.offered += length;
  return found;
}

Status Receiver::begin_chunk(const wire::FrameHeader& header) {
  const std::byte* const at = staging_.get() + parsed_ + wire::kFrameHeaderSize;
  auto chunk = wire::decode_data_prefix(
      header, std::span<const std::byte, wire::kDataPrefixSize>(at, wire::kDataPrefixSize),
      limits_);
  if (!chunk) return chunk.status();
  auto found = next_chunk(header, SegmentKind::kPush, chunk->offset, chunk->length);
  if (!found) return found.status();
  note(TraceStep::kData, header, chunk->segment, chunk->length);
  Incoming& incoming = **found;
  chunk_type_ = wire::FrameType::kData;
  chunk_message_ = header.message;
  chunk_segment_ = chunk->segment;
  chunk_offset_ = chunk->offset;
  chunk_length_ = chunk->length;

  parsed_ += wire::kFrameHeaderSize + wire::kDataPrefixSize;
  const size_t here = std::min<size_t>(staged_ - parsed_, chunk->length);
  chunk_left_ = chunk->length;
  chunk_to_ = chunk_memory(incoming, *chunk, here);
  chunk_posted_ = Ref<PostedBuffer>::share(chunk_to_ ? incoming.buffer.posted() : nullptr);
  store({staging_.get() + parsed_, here});
  return take_rest(chunk_to_, here, chunk->length);
}

// The payload of an OPERATION or OUTCOME goes to where the sink wants it, as that of DATA goes to
// its segment.
Status Receiver::begin_placing(const wire::FrameHeader& header) {
  const std::byte* const at = staging_.get() + parsed_ + wire::kFrameHeaderSize;
  const size_t prefix = placed_prefix(header.type);
  const size_t length = header.body_length - prefix;
  chunk_type_ = header.type;
  chunk_posted_ = nullptr;
  parsed_ += wire::kFrameHeaderSize + prefix;
  const std::span here(staging_.get() + parsed_, std::min<size_t>(staged_ - parsed_, length));
  Result<std::byte*> to = nullptr;
  if (header.type == wire::FrameType::kOperation) {
    auto operation = wire::decode_operation_prefix(
        header, std::span<const std::byte, wire::kOperationPrefixSize>(at, prefix), limits_);
    to = operation ? sink_.on_operation(*operation, here) : operation.status();
  } else {
    auto outcome = wire::decode_outcome_prefix(
        header, std::span<const std::byte, wire::kOutcomePrefixSize>(at, prefix), limits_);
    to = outcome ? sink_.on_outcome(*outcome, here) : outcome.status();
  }
  if (!to) return to.status();
  chunk_room_ = length - here.size();
  return take_rest(*to, here.size(), length);
}

// `here` bytes of a chunk lie in the staging area and have been dealt with; the rest goes to `to`.
Status Receiver::take_rest(std::byte* to, size_t here, size_t length) {
  parsed_ += here;
  chunk_to_ = to;
  chunk_left_ = length - here;
  if (chunk_left_ == 0) return end_chunk();
  parsed_ = staged_ = 0;
  return {};
}

Status Receiver::end_chunk() {
  chunk_posted_ = nullptr;
  if (chunk_type_ != wire::FrameType::kData) return sink_.on_placed(chunk_type_);
  ++counters_.pushed_chunks;
  // Nothing else was parsed since the chunk began: its message is still there.
  Incoming& incoming = unfinished_.find(chunk_message_)->second;
  Parcel& parcel = *incoming.parcel;
  if (parcel.ok() && chunk_offset_ + chunk_length_ == parcel.size_of(chunk_segment_)) {
    parcel.place(chunk_segment_, incoming.buffer.data(), incoming.buffer.hold());
    incoming.buffer = {};
    borrowed_ -= std::exchange(incoming.borrowed, 0);
    ++counters_.pushed_segments;
  }
  return arrived(incoming, chunk_message_, chunk_length_);
}

Status Receiver::rts_frame(const wire::FrameHeader& header, std::span<const std::byte> body) {
  auto offer = wire::decode_rts_body(header, body, limits_);
  if (!offer) return offer.status();
  auto found = next_chunk(header, SegmentKind::kRead, offer->segment_offset, offer->length);
  if (!found) return found.status();
  if (offers_ == kMaxOffers)
    return bad("RTS", "message", header.message, {"but ", kMaxOffers, " are out without a FIN"});
  ++offers_;
  note(TraceStep::kRts, header, header.first_segment, offer->length, offer->rendezvous);
  Read read;
  read.from = {offer->slab, offer->generation, offer->offset, offer->length};
  read.rendezvous = offer->rendezvous;
  read.stream = header.stream;
  read.message = header.message;
  read.segment = header.first_segment;
  read.offset = offer->segment_offset;
  // Behind those that wait for memory, unless its segment has some.
  const Parcel& parcel = *(*found)->parcel;
  if ((parcel.ok() && !parcel.data_of(read.segment) && !later_.empty()) ||
      !place_read(**found, read))
    later_.push_back(std::move(read));
  else
    reads_.push_back(std::move(read));
  return {};
}

bool Receiver::wants(const Read& read) const {
  const auto it = unfinished_.find(read.message);
  return it != unfinished_.end() && it->second.parcel->ok();
}

void Receiver::refuse(uint64_t message, Status why) {
  const auto it = unfinished_.find(message);
  if (it == unfinished_.end() || !it->second.parcel->ok()) return;
  refuse(it->second, std::move(why));
  resume_offers();
}

Status Receiver::read_done(const Read& read) {
  --offers_;
  if (read.destination) {
    ++counters_.reads;
    counters_.read_bytes += read.from.length;
  }
  auto it = unfinished_.find(read.message);
  if (it == unfinished_.end()) return {};  // aborted meanwhile
  Incoming& incoming = it->second;
  if (incoming.parcel->ok()) {
    incoming.unread -= read.from.length;
    unread_ -= read.from.length;
  }
  resume_offers();
  return arrived(incoming, read.message, read.from.length);
}

Status Receiver::abort(const wire::FrameHeader& header) {
  auto found = find(header, "ABORT");
  if (!found) return found.status();
  note(TraceStep::kAbort, header, 0, 0);
  let_go(**found);
  const Ref<Parcel> parcel = (*found)->parcel;
  unfinished_.erase(header.message);
  resume_offers();
  auto waiting = waiting_.find(header.stream);
  waiting->second.remove(parcel->cost());
  waiting->second.parcels.remove(*parcel);
  sink_.on_given_up(*parcel);
  return deliver_waiting(header.stream);
}

Status Receiver::arrived(Incoming& incoming, uint64_t number, uint64_t bytes) {
  incoming.left -= bytes;
  if (incoming.left != 0) return {};
  let_go(incoming);
  incoming.parcel->set_unfinished(false);
  const uint64_t stream = incoming.parcel->stream();
  unfinished_.erase(number);
  return deliver_waiting(stream);
}

Status Receiver::deliver_waiting(uint64_t stream) {
  auto waiting = waiting_.find(stream);
  ParcelQueue& parcels = waiting->second.parcels;
  while (!parcels.empty() && !parcels.front().unfinished()) {
    Ref<Parcel> parcel = parcels.pop();
    waiting->second.remove(parcel->cost());
    if (Status status = deliver(std::move(parcel)); !status.ok()) return status;
  }
  if (parcels.empty()) waiting_.erase(waiting);
  return {};
}

Status Receiver::deliver(Ref<Parcel> parcel) {
  ++counters_.messages;
  counters_.bytes += parcel->payload_bytes();
  return sink_.on_message(std::move(parcel));
}

}  // namespace tw
