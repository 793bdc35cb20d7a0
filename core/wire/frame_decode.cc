// SPDX-License-Identifier: Apache-2.0
// Decoders of frames: all that a peer may have chosen is checked here.
#include <algorithm>
#include <cstddef>

#include "wire/bytes.h"
#include "wire/frame.h"
#include "wire/frame_layout.h"
#include "wire/one_sided_frames.h"

namespace tw::wire {
namespace {

[[gnu::cold, gnu::noinline]] Status bad_segment(size_t index, std::string_view field,
                                                uint64_t value, std::initializer_list<Piece> why) {
  return protocol_error(
      {"MESSAGE frame: segment ", index, ": ", field, " is ", value, ", ", text(why)});
}

// Which header fields a type uses; the others have to be zero.
struct Uses {
  bool segment_count, stream, message, header_length, first_segment;
};

constexpr Uses uses(FrameType type) {
  switch (type) {
    case FrameType::kMessage:
      return {true, true, true, true, false};
    case FrameType::kEager:
      return {true, true, true, false, true};
    case FrameType::kData:
    case FrameType::kRts:
      return {false, true, true, false, true};
    case FrameType::kCredit:
      return {false, true, false, false, false};
    case FrameType::kAbort:
      return {false, true, true, false, false};
    case FrameType::kFin:
    case FrameType::kGoAway:
    case FrameType::kRegion:
    case FrameType::kRegionGone:
    case FrameType::kOperation:
    case FrameType::kOutcome:
    case FrameType::kUnmappable:
      break;
  }
  return {};
}

Status check_unused(const FrameHeader& h) {
  const Uses used = uses(h.type);
  const auto stray = [&](std::string_view field, uint64_t value) {
    return bad(h.type, field, value, {"must be 0 in this type"});
  };
  if (!used.segment_count && h.segment_count != 0) return stray("segment_count", h.segment_count);
  if (!used.stream && h.stream != 0) return stray("stream", h.stream);
  if (!used.message && h.message != 0) return stray("message", h.message);
  if (!used.header_length && h.header_length != 0) return stray("header_length", h.header_length);
  if (!used.first_segment && h.first_segment != 0) return stray("first_segment", h.first_segment);
  if (used.message && h.message == 0) return bad(h.type, "message", 0, {"numbers start at 1"});
  return {};
}

Status check_body_length(const FrameHeader& h, uint64_t lowest, uint64_t highest) {
  if (h.body_length < lowest) return bad(h.type, "body_length", h.body_length, {"below ", lowest});
  if (h.body_length > highest) {
    return bad(h.type, "body_length", h.body_length, {"above the limit of ", highest});
  }
  return {};
}

Status check_message_header(const FrameHeader& h, const Limits& limits) {
  if (h.segment_count > limits.max_segments) {
    return bad(h.type, "segment_count", h.segment_count,
               {"above the limit of ", limits.max_segments});
  }
  if (h.header_length > limits.max_header_bytes) {
    return bad(h.type, "header_length", h.header_length,
               {"above the limit of ", limits.max_header_bytes});
  }
  return check_body_length(h, h.segment_count * uint64_t{kSegmentEntrySize} + h.header_length,
                           limits.max_frame_body);
}

Status check_segment_range(const FrameHeader& h, uint64_t count, const Limits& limits) {
  if (h.first_segment + count > limits.max_segments) {
    return bad(h.type, "first_segment", h.first_segment,
               {"with ", count, " segments above the limit of ", limits.max_segments});
  }
  return {};
}

Status check_by_type(const FrameHeader& h, const Limits& limits) {
  switch (h.type) {
    case FrameType::kMessage:
      return check_message_header(h, limits);
    case FrameType::kEager:
      if (h.segment_count == 0) return bad(h.type, "segment_count", 0, {"must be at least 1"});
      if (Status s = check_segment_range(h, h.segment_count, limits); !s.ok()) return s;
      return check_body_length(h, 1, limits.max_frame_body);
    case FrameType::kData:
      if (Status s = check_segment_range(h, 1, limits); !s.ok()) return s;
      return check_body_length(h, kDataPrefixSize + 1,
                               kDataPrefixSize + uint64_t{limits.max_chunk_bytes});
    case FrameType::kRts:
      if (Status s = check_segment_range(h, 1, limits); !s.ok()) return s;
      return check_body_length(h, kRtsBodySize, kRtsBodySize);
    case FrameType::kFin:
      if (h.body_length % sizeof(uint64_t) != 0) {
        return bad(h.type, "body_length", h.body_length, {"not a multiple of 8"});
      }
      return check_body_length(h, sizeof(uint64_t), kMaxFinIds * sizeof(uint64_t));
    case FrameType::kCredit:
      return check_body_length(h, kCreditBodySize, kCreditBodySize);
    case FrameType::kAbort:
      return check_body_length(h, 0, 0);
    case FrameType::kGoAway:
      return check_body_length(h, sizeof(uint32_t), sizeof(uint32_t) + kMaxGoAwayReason);
    case FrameType::kRegion:
      return check_body_length(h, kRegionBodySize, kRegionBodySize);
    case FrameType::kRegionGone:
      return check_body_length(h, kRegionGoneBodySize, kRegionGoneBodySize);
    case FrameType::kOperation:
      return check_body_length(h, kOperationPrefixSize,
                               kOperationPrefixSize + uint64_t{limits.max_chunk_bytes});
    case FrameType::kOutcome:
      return check_body_length(h, kOutcomePrefixSize,
                               kOutcomePrefixSize + std::max(uint64_t{limits.max_chunk_bytes},
                                                             uint64_t{kMaxOutcomeDetails}));
    case FrameType::kUnmappable:
      return check_body_length(h, kUnmappableBodySize, kUnmappableBodySize);
  }
  return {};
}

}  // namespace

Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderSize> bytes,
                                        const Limits& limits) {
  const auto type = std::to_integer<uint8_t>(bytes[offsetof(FrameHeader, type)]);
  if (type < static_cast<uint8_t>(FrameType::kMessage) ||
      type > static_cast<uint8_t>(FrameType::kUnmappable)) {
    return protocol_error({"frame: type is ", type, ", which this version does not know"});
  }
  const auto h = load<FrameHeader>(bytes.data());
  if (h.flags != 0) return bad(h.type, "flags", h.flags, {"but none is defined"});
  if (Status s = check_unused(h); !s.ok()) return s;
  if (Status s = check_by_type(h, limits); !s.ok()) return s;
  return h;
}

Result<MessageHead> decode_message_body(const FrameHeader& header, std::span<const std::byte> body,
                                        const Limits& limits, std::span<SegmentInfo> segments) {
  if (Status s = check_size(header, FrameType::kMessage, body.size()); !s.ok()) return s;
  const size_t count = header.segment_count;
  if (segments.size() < count) {
    return Status(Code::kInternal, text({"local error: room for ", segments.size(),
                                         " segments, but the message has ", count}));
  }
  // decode_frame_header has made sure that the entries and the header fit; the rest is counted
  // down.
  uint64_t rest = body.size() - count * kSegmentEntrySize - header.header_length;
  uint64_t total = 0;
  uint64_t inline_total = 0;
  const std::byte* descriptor = body.data() + count * kSegmentEntrySize;
  for (size_t i = 0; i < count; ++i) {
    const auto entry = load<SegmentEntry>(body.data() + i * kSegmentEntrySize);
    if (entry.reserved != 0) return bad_segment(i, "reserved", entry.reserved, {"must be 0"});
    if (!add_within(total, entry.length, limits.max_message_bytes)) {
      return bad_segment(i, "length", entry.length,
                         {"which takes the message above the limit of ", limits.max_message_bytes});
    }
    SegmentInfo& out = segments[i];
    out = {entry.length, static_cast<SegmentKind>(entry.kind), {}};
    switch (out.kind) {
      case SegmentKind::kInline:
        // Compared once all descriptors are counted; cannot overflow, as it is at most `total`.
        inline_total += entry.length;
        break;
      case SegmentKind::kEager:
        if (entry.length > limits.max_frame_body) {
          return bad_segment(i, "length", entry.length,
                             {"above the limit of ", limits.max_frame_body, " for EAGER"});
        }
        break;
      case SegmentKind::kReturn:
        if (entry.length < kLeastReturned) {
          return bad_segment(i, "length", entry.length, {"below ", kLeastReturned, " for RETURN"});
        }
        [[fallthrough]];
      case SegmentKind::kMap:
        if (rest < kDescriptorSize) {
          return bad_segment(i, "kind", entry.kind, {"but the body has no room for a descriptor"});
        }
        rest -= kDescriptorSize;
        out.map = load<Descriptor>(descriptor);
        descriptor += kDescriptorSize;
        if (out.map.offset > UINT64_MAX - entry.length) {
          return bad_segment(i, "offset", out.map.offset, {"and overflows with its length"});
        }
        [[fallthrough]];
      case SegmentKind::kPush:
      case SegmentKind::kRead:
        if (entry.length == 0) return bad_segment(i, "length", 0, {"only for INLINE and EAGER"});
        break;
      default:
        return bad_segment(i, "kind", entry.kind, {"which this version does not know"});
    }
  }
  if (inline_total != rest) {
    return bad(header.type, "body_length", header.body_length,
               {"which leaves ", rest, " bytes for INLINE segments of ", inline_total});
  }
  MessageHead head;
  head.header = {descriptor, header.header_length};
  head.inline_bytes = body.last(rest);
  head.total_bytes = total;
  return head;
}

Result<DataChunk> decode_data_prefix(const FrameHeader& header,
                                     std::span<const std::byte, kDataPrefixSize> prefix,
                                     const Limits& limits) {
  if (Status s = check_size(header, FrameType::kData, header.body_length); !s.ok()) return s;
  DataChunk chunk;
  chunk.segment = header.first_segment;
  chunk.offset = load<uint64_t>(prefix.data());
  chunk.length = header.body_length - static_cast<uint32_t>(kDataPrefixSize);
  if (chunk.offset > limits.max_message_bytes ||
      chunk.length > limits.max_message_bytes - chunk.offset) {
    return bad(header.type, "offset", chunk.offset,
               {"with ", chunk.length, " bytes above the limit of ", limits.max_message_bytes});
  }
  return chunk;
}

Result<ReadOffer> decode_rts_body(const FrameHeader& header, std::span<const std::byte> body,
                                  const Limits& limits) {
  if (Status s = check_size(header, FrameType::kRts, body.size()); !s.ok()) return s;
  const auto offer = load<ReadOffer>(body.data());
  if (offer.length == 0) return bad(header.type, "length", 0, {"must be at least 1"});
  if (offer.length > limits.max_chunk_bytes) {
    return bad(header.type, "length", offer.length,
               {"above the limit of ", limits.max_chunk_bytes});
  }
  if (offer.offset > UINT64_MAX - offer.length) {
    return bad(header.type, "offset", offer.offset, {"and overflows with its length"});
  }
  if (offer.segment_offset > limits.max_message_bytes ||
      offer.length > limits.max_message_bytes - offer.segment_offset) {
    return bad(header.type, "segment_offset", offer.segment_offset,
               {"with ", offer.length, " bytes above the limit of ", limits.max_message_bytes});
  }
  return offer;
}

uint64_t IdList::operator[](size_t index) const {
  return load<uint64_t>(bytes_.subspan(index * sizeof(uint64_t), sizeof(uint64_t)).data());
}

Result<IdList> decode_fin_body(const FrameHeader& header, std::span<const std::byte> body) {
  if (Status s = check_size(header, FrameType::kFin, body.size()); !s.ok()) return s;
  return IdList(body);
}

Result<uint64_t> decode_credit_body(const FrameHeader& header, std::span<const std::byte> body) {
  if (Status s = check_size(header, FrameType::kCredit, body.size()); !s.ok()) return s;
  const auto bytes = load<uint64_t>(body.data());
  if (bytes == 0) return bad(header.type, "bytes", 0, {"must be at least 1"});
  return bytes;
}

Result<uint64_t> decode_unmappable_body(const FrameHeader& header,
                                        std::span<const std::byte> body) {
  if (Status s = check_size(header, FrameType::kUnmappable, body.size()); !s.ok()) return s;
  return load<uint64_t>(body.data());
}

Result<GoAway> decode_goaway_body(const FrameHeader& header, std::span<const std::byte> body) {
  if (Status s = check_size(header, FrameType::kGoAway, body.size()); !s.ok()) return s;
  const auto code = load<uint32_t>(body.data());
  if (code > kHighestCode) return bad(header.type, "code", code, {"no gRPC status code"});
  const auto text_bytes = body.subspan(sizeof code);
  const std::string_view reason(reinterpret_cast<const char*>(text_bytes.data()),
                                text_bytes.size());
  if (!is_utf8(reason)) {
    return protocol_error({"GOAWAY frame: reason is not UTF-8: ", quoted(reason)});
  }
  return GoAway{static_cast<Code>(code), reason};
}

}  // namespace tw::wire
