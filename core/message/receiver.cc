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
constexpr size_t kMaxUnfinished = 65'536;
// Of all messages together; senders have a few out for each.
constexpr size_t kMaxOffers = 4 * kMaxUnfinished;

// In the words of the wire codec. Cold on purpose: the text is made only when a peer misbehaves.
[[gnu::cold, gnu::noinline]] Status bad(std::string_view frame, std::string_view field,
                                        uint64_t value, std::initializer_list<Piece> why) {
  return wire::protocol_error({frame, " frame: ", field, " is ", value, ", ", text(why)});
}

// Header, inline and eager bytes of one message.
class SmallBlock final : public RefCounted {
 public:
  static Ref<SmallBlock> create(size_t bytes) {
    return Ref<SmallBlock>::adopt(new (::operator new(sizeof(SmallBlock) + bytes)) SmallBlock);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }

 private:
  SmallBlock() = default;
  void dispose() noexcept override {
    this->~SmallBlock();
    ::operator delete(this);
  }
};
static_assert(sizeof(SmallBlock) % alignof(std::max_align_t) == 0);

// Small segments start at multiples of this, so that an array of any type can lie there.
constexpr size_t kAlign = 16;
constexpr size_t aligned(size_t n) { return (n + kAlign - 1) & ~(kAlign - 1); }

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
  // Heads of what follows, and little of its payload, which would be copied once more from here.
  room[0] = {chunk_to_, chunk_left_};
  room[1] = {staging_.get(), kAheadBytes};
  return 2;
}

Status Receiver::received(size_t bytes) {
  if (chunk_left_ != 0) {
    // While a chunk is under way the staging area holds nothing.
    const size_t n = std::min(bytes, chunk_left_);
    if (chunk_to_) chunk_to_ += n;
    chunk_left_ -= n;
    bytes -= n;
    if (chunk_left_ != 0) return {};
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
      if (needed > staging_size_) {
        std::unique_ptr<std::byte[]> grown(new std::byte[needed]);
        std::memcpy(grown.get(), at, staged_ - parsed_);
        staging_ = std::move(grown);
        staging_size_ = needed;
        staged_ -= parsed_;
        parsed_ = 0;
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
  const bool all_inline = std::all_of(infos_.begin(), infos_.end(), [](const SegmentInfo& info) {
    return info.kind == SegmentKind::kInline;
  });
  if (all_inline && head->total_bytes <= max_message_ && !waiting_.contains(header.stream))
    return inline_message(header, *head);
  return announce(header, *head);
}

// The hot path of small calls: one allocation for the bytes, one for the list.
Status Receiver::inline_message(const wire::FrameHeader& header, const wire::MessageHead& head) {
  size_t bytes = aligned(head.header.size());
  for (const SegmentInfo& info : infos_) bytes += aligned(info.length);
  Ref<SmallBlock> block = SmallBlock::create(bytes);
  InMessage message;
  message.stream = header.stream;
  std::byte* at = block->data();
  if (!head.header.empty()) std::memcpy(at, head.header.data(), head.header.size());
  message.header = {at, head.header.size()};
  message.header_hold = block;
  at += aligned(head.header.size());
  message.segments.reserve(infos_.size());
  const std::byte* from = head.inline_bytes.data();
  for (const SegmentInfo& info : infos_) {
    if (info.length) std::memcpy(at, from, info.length);
    message.segments.push_back({at, info.length, block, nullptr});
    from += info.length;
    at += aligned(info.length);
  }
  message.payload_bytes = head.total_bytes;
  counters_.inline_segments += infos_.size();
  return deliver(std::move(message));
}

Status Receiver::announce(const wire::FrameHeader& header, const wire::MessageHead& head) {
  auto incoming = std::make_unique<Incoming>();
  incoming->number = header.message;
  incoming->message.stream = header.stream;
  incoming->message.payload_bytes = head.total_bytes;
  incoming->segments.resize(infos_.size());
  for (size_t i = 0; i < infos_.size(); ++i) {
    incoming->segments[i].length = infos_[i].length;
    incoming->segments[i].kind = infos_[i].kind;
    if (infos_[i].kind != SegmentKind::kInline && infos_[i].kind != SegmentKind::kMap)
      incoming->left += infos_[i].length;
  }
  const bool whole = incoming->left == 0;
  auto waiting = waiting_.find(header.stream);
  if (whole && waiting == waiting_.end()) {
    if (Status status = allocate(*incoming, head); !status.ok()) return status;
    return deliver(std::move(incoming->message));
  }
  if (!whole && unfinished_.size() == kMaxUnfinished)
    return bad("MESSAGE", "message", header.message,
               {"while ", kMaxUnfinished, " messages before it have not ended"});
  auto cost = sink_.on_wait(header.stream, head.header, head.total_bytes,
                            waiting == waiting_.end() ? Cost{} : waiting->second.cost);
  if (!cost) return cost.status();
  if (Status status = allocate(*incoming, head); !status.ok()) return status;
  incoming->cost = *cost;
  if (!whole) unfinished_.emplace(header.message, incoming.get());
  if (waiting == waiting_.end()) waiting = waiting_.try_emplace(header.stream).first;
  waiting->second.cost.credit += cost->credit;
  waiting->second.cost.header_bytes += cost->header_bytes;
  waiting->second.messages.push_back(std::move(incoming));
  return {};
}

void Receiver::refuse(Incoming& incoming, Status why) {
  incoming.message.status = std::move(why);
  incoming.message.segments.clear();
  for (Segment& segment : incoming.segments) segment.destination = nullptr;
  ++counters_.refused;
}

Status Receiver::allocate(Incoming& incoming, const wire::MessageHead& head) {
  InMessage& message = incoming.message;
  if (head.total_bytes > max_message_)
    refuse(incoming,
           {Code::kResourceExhausted,
            text({"a message of ", head.total_bytes,
                  " bytes is larger than the receiver's limit of ", max_message_, " bytes"})});
  size_t small = 0;
  if (message.status.ok())
    for (const SegmentInfo& info : infos_)
      if (info.kind == SegmentKind::kInline || info.kind == SegmentKind::kEager)
        small += aligned(info.length);

  // Small segments in such numbers that they are large together have their memory recycled, too.
  const bool pooled = small > Pool::kSmallest;
  const size_t header_bytes = aligned(head.header.size());
  Ref<SmallBlock> block = SmallBlock::create(header_bytes + (pooled ? 0 : small));
  if (!head.header.empty()) std::memcpy(block->data(), head.header.data(), head.header.size());
  message.header = {block->data(), head.header.size()};
  message.header_hold = block;
  std::byte* at = block->data() + header_bytes;
  Hold hold = std::move(block);
  if (pooled) {
    auto buffer = pool_.get(small);
    if (buffer) {
      at = (*buffer)->data();
      hold = std::move(*buffer);
    } else {
      refuse(incoming, buffer.status());
    }
  }
  const std::byte* from = head.inline_bytes.data();

  for (size_t i = 0; i < infos_.size(); ++i) {
    const SegmentInfo& info = infos_[i];
    if (info.kind == SegmentKind::kMap) {
      // Also when refused: letting go of the view gives the lease back.
      auto view = sink_.on_map(info);
      if (!view && view.status().code() != Code::kResourceExhausted) return view.status();
      if (!message.status.ok()) continue;
      if (view) {
        ++counters_.mapped_segments;
        message.segments.push_back(std::move(*view));
      } else {
        refuse(incoming, view.status());
      }
      continue;
    }
    if (!message.status.ok()) continue;
    if (info.kind == SegmentKind::kInline || info.kind == SegmentKind::kEager) {
      if (info.kind == SegmentKind::kInline) {
        if (info.length) std::memcpy(at, from, info.length);
        from += info.length;
        ++counters_.inline_segments;
      } else {
        incoming.segments[i].destination = at;
        ++counters_.eager_segments;
      }
      message.segments.push_back({at, info.length, hold, nullptr});
      at += aligned(info.length);
      continue;
    }
    auto buffer = large_buffer(info);
    if (!buffer) {
      refuse(incoming, buffer.status());
      continue;
    }
    incoming.segments[i].destination = buffer->data;
    message.segments.push_back({buffer->data, info.length, std::move(buffer->hold), nullptr});
  }
  return {};
}

Result<ReceiveMemory::Buffer> Receiver::large_buffer(const SegmentInfo& info) {
  if (info.kind == SegmentKind::kRead) {
    auto buffer = fetched_.get(info.length);
    if (!buffer) return buffer;
    ++counters_.read_segments;
    ++(buffer->in_arena ? counters_.arena_buffers : counters_.pool_buffers);
    return buffer;
  }
  auto buffer = pool_.get(info.length);
  if (!buffer) return buffer.status();
  ++counters_.pushed_segments;
  std::byte* const data = (*buffer)->data();
  return ReceiveMemory::Buffer{data, std::move(*buffer), false};
}

Result<Receiver::Incoming*> Receiver::find(const wire::FrameHeader& header,
                                           std::string_view frame) {
  auto it = unfinished_.find(header.message);
  if (it == unfinished_.end())
    return bad(frame, "message", header.message, {"which is not under way"});
  const uint64_t stream = it->second->message.stream;
  if (stream != header.stream)
    return bad(frame, "stream", header.stream,
               {"but message ", header.message, " is on stream ", stream});
  return it->second;
}

Status Receiver::eager_frame(const wire::FrameHeader& header, std::span<const std::byte> body) {
  auto found = find(header, "EAGER");
  if (!found) return found.status();
  note(TraceStep::kEager, header, header.first_segment, body.size());
  Incoming& incoming = **found;
  const size_t end = size_t{header.first_segment} + header.segment_count;
  if (end > incoming.segments.size())
    return bad("EAGER", "first_segment", header.first_segment,
               {"with ", header.segment_count, " segments, but message ", header.message, " has ",
                incoming.segments.size()});
  const std::byte* from = body.data();
  size_t left = body.size();
  for (size_t i = header.first_segment; i < end; ++i) {
    Segment& segment = incoming.segments[i];
    if (segment.kind != SegmentKind::kEager || i < incoming.next_eager)
      return bad("EAGER", "first_segment", header.first_segment,
                 {"but segment ", i, " is not due in an EAGER frame"});
    if (segment.length > left)
      return bad("EAGER", "body_length", header.body_length, {"too short for its segments"});
    if (segment.destination && segment.length)
      std::memcpy(segment.destination, from, segment.length);
    from += segment.length;
    left -= segment.length;
    incoming.next_eager = static_cast<uint32_t>(i) + 1;
  }
  if (left != 0)
    return bad("EAGER", "body_length", header.body_length,
               {left, " bytes too long for its segments"});
  return arrived(incoming, body.size());
}

// The message whose segment a DATA or RTS frame continues, by `length` bytes at `offset`.
Result<Receiver::Incoming*> Receiver::next_chunk(const wire::FrameHeader& header, SegmentKind kind,
                                                 uint64_t offset, uint64_t length) {
  const bool pushed = kind == SegmentKind::kPush;
  const std::string_view frame = pushed ? "DATA" : "RTS";
  auto found = find(header, frame);
  if (!found) return found.status();
  auto& segments = (*found)->segments;
  if (header.first_segment >= segments.size())
    return bad(frame, "first_segment", header.first_segment,
               {"but message ", header.message, " has ", segments.size(), " segments"});
  Segment& segment = segments[header.first_segment];
  if (segment.kind != kind)
    return bad(frame, "first_segment", header.first_segment,
               {"which was not announced as ", pushed ? "PUSH" : "READ"});
  if (offset != segment.offered)
    return bad(frame, pushed ? "offset" : "segment_offset", offset,
               {"but segment ", header.first_segment, " goes on at ", segment.offered});
  if (length > segment.length - offset)
    return bad(frame, pushed ? "body_length" : "length", pushed ? header.body_length : length,
               {"beyond the end of segment ", header.first_segment});
  segment.offered += length;
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
  const Segment& segment = (*found)->segments[chunk->segment];
  chunk_type_ = wire::FrameType::kData;
  chunk_message_ = header.message;
  chunk_segment_ = chunk->segment;
  chunk_offset_ = chunk->offset;
  chunk_length_ = chunk->length;

  parsed_ += wire::kFrameHeaderSize + wire::kDataPrefixSize;
  const size_t here = std::min<size_t>(staged_ - parsed_, chunk->length);
  std::byte* to = segment.destination ? segment.destination + chunk->offset : nullptr;
  if (to) {
    std::memcpy(to, staging_.get() + parsed_, here);
    to += here;
  }
  return take_rest(to, here, chunk->length);
}

// The payload of an OPERATION or OUTCOME goes to where the sink wants it, as that of DATA goes to
// its segment.
Status Receiver::begin_placing(const wire::FrameHeader& header) {
  const std::byte* const at = staging_.get() + parsed_ + wire::kFrameHeaderSize;
  const size_t prefix = placed_prefix(header.type);
  const size_t length = header.body_length - prefix;
  chunk_type_ = header.type;
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
  if (chunk_type_ != wire::FrameType::kData) return sink_.on_placed(chunk_type_);
  ++counters_.pushed_chunks;
  // Nothing else was parsed since the chunk began: its message is still there.
  auto it = unfinished_.find(chunk_message_);
  if (it->second->message.status.ok())
    sink_.on_chunk(it->second->message.stream, chunk_message_, chunk_segment_, chunk_offset_,
                   chunk_length_);
  return arrived(*it->second, chunk_length_);
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
  if (std::byte* const to = (*found)->segments[read.segment].destination) {
    read.destination = to + offer->segment_offset;
    read.hold = (*found)->message.segments[read.segment].hold;
  }
  reads_.push_back(std::move(read));
  return {};
}

bool Receiver::wants(const Read& read) const {
  const auto it = unfinished_.find(read.message);
  return it != unfinished_.end() && it->second->message.status.ok();
}

void Receiver::refuse(uint64_t message, Status why) {
  const auto it = unfinished_.find(message);
  if (it != unfinished_.end() && it->second->message.status.ok())
    refuse(*it->second, std::move(why));
}

Status Receiver::read_done(const Read& read) {
  --offers_;
  if (read.destination) {
    ++counters_.reads;
    counters_.read_bytes += read.from.length;
  }
  auto it = unfinished_.find(read.message);
  if (it == unfinished_.end()) return {};  // aborted meanwhile
  if (it->second->message.status.ok())
    sink_.on_chunk(it->second->message.stream, read.message, read.segment, read.offset,
                   read.from.length);
  return arrived(*it->second, read.from.length);
}

Status Receiver::abort(const wire::FrameHeader& header) {
  auto found = find(header, "ABORT");
  if (!found) return found.status();
  note(TraceStep::kAbort, header, 0, 0);
  unfinished_.erase(header.message);
  auto waiting = waiting_.find(header.stream);
  waiting->second.remove((*found)->cost);
  std::erase_if(waiting->second.messages, [&](const std::unique_ptr<Incoming>& incoming) {
    return incoming->number == header.message;
  });
  return deliver_waiting(header.stream);
}

Status Receiver::arrived(Incoming& incoming, uint64_t bytes) {
  incoming.left -= bytes;
  if (incoming.left != 0) return {};
  unfinished_.erase(incoming.number);
  return deliver_waiting(incoming.message.stream);
}

Status Receiver::deliver_waiting(uint64_t stream) {
  auto waiting = waiting_.find(stream);
  auto& messages = waiting->second.messages;
  while (!messages.empty() && messages.front()->left == 0) {
    std::unique_ptr<Incoming> incoming = std::move(messages.front());
    messages.pop_front();
    waiting->second.remove(incoming->cost);
    if (Status status = deliver(std::move(incoming->message)); !status.ok()) return status;
  }
  if (messages.empty()) waiting_.erase(waiting);
  return {};
}

Status Receiver::deliver(InMessage message) {
  ++counters_.messages;
  counters_.bytes += message.payload_bytes;
  return sink_.on_message(std::move(message));
}

}  // namespace tw
