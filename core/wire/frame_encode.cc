// SPDX-License-Identifier: Apache-2.0
// Encoders of frames. What they are given is the local sender's, already checked by it.
#include <cassert>

#include "wire/bytes.h"
#include "wire/frame.h"
#include "wire/frame_layout.h"

namespace tw::wire {
namespace {}  // namespace

size_t message_prefix_size(std::span<const SegmentInfo> segments) {
  size_t size = kFrameHeaderSize + segments.size() * kSegmentEntrySize;
  for (const SegmentInfo& segment : segments) {
    if (described(segment.kind)) size += kDescriptorSize;
  }
  return size;
}

Status check_message(std::span<const SegmentInfo> segments, size_t header_length,
                     const Limits& limits) {
  if (header_length > limits.max_header_bytes) {
    return {Code::kResourceExhausted, text({"metadata and details take ", header_length,
                                            " bytes of a message's header; at most ",
                                            limits.max_header_bytes, " are permitted"})};
  }
  if (segments.size() > limits.max_segments) {
    return {Code::kInvalidArgument,
            text({"the message has ", segments.size(), " segments; at most ", limits.max_segments,
                  " are permitted"})};
  }
  uint64_t total = 0;
  for (const SegmentInfo& segment : segments) {
    if (!add_within(total, segment.length, limits.max_message_bytes)) {
      return {Code::kResourceExhausted, text({"the message is larger than the limit of ",
                                              limits.max_message_bytes, " bytes"})};
    }
  }
  return {};
}

std::byte* encode_message_prefix(std::byte* out, uint64_t stream, uint64_t message,
                                 std::span<const SegmentInfo> segments, size_t header_length) {
  assert(message != 0 && segments.size() <= UINT16_MAX && header_length <= UINT32_MAX);
  std::byte* entry = out + kFrameHeaderSize;
  std::byte* descriptor = entry + segments.size() * kSegmentEntrySize;
  uint64_t inline_total = 0;
  for (const SegmentInfo& segment : segments) {
    entry = store(entry, SegmentEntry{segment.length, static_cast<uint32_t>(segment.kind), 0});
    if (described(segment.kind)) descriptor = store(descriptor, segment.map);
    if (segment.kind == SegmentKind::kInline) inline_total += segment.length;
  }
  const uint64_t body =
      static_cast<uint64_t>(descriptor - out) - kFrameHeaderSize + header_length + inline_total;
  assert(body <= UINT32_MAX);
  FrameHeader header;
  header.body_length = static_cast<uint32_t>(body);
  header.type = FrameType::kMessage;
  header.segment_count = static_cast<uint16_t>(segments.size());
  header.stream = stream;
  header.message = message;
  header.header_length = static_cast<uint32_t>(header_length);
  store(out, header);
  return descriptor;
}

std::byte* encode_eager_prefix(std::byte* out, uint64_t stream, uint64_t message,
                               uint32_t first_segment, uint16_t segment_count,
                               uint32_t body_length) {
  assert(message != 0 && segment_count != 0 && body_length != 0);
  FrameHeader header;
  header.body_length = body_length;
  header.type = FrameType::kEager;
  header.segment_count = segment_count;
  header.stream = stream;
  header.message = message;
  header.first_segment = first_segment;
  return store(out, header);
}

void renumber(std::span<std::byte> frames, uint64_t message) {
  while (!frames.empty()) {
    const auto header = load<FrameHeader>(frames.data());
    store(frames.data() + offsetof(FrameHeader, message), message);
    frames = frames.subspan(kFrameHeaderSize + header.body_length);
  }
}

std::byte* encode_data_prefix(std::byte* out, uint64_t stream, uint64_t message, uint32_t segment,
                              uint64_t offset, uint32_t length) {
  assert(message != 0 && length != 0 && length <= UINT32_MAX - kDataPrefixSize);
  FrameHeader header;
  header.body_length = length + static_cast<uint32_t>(kDataPrefixSize);
  header.type = FrameType::kData;
  header.stream = stream;
  header.message = message;
  header.first_segment = segment;
  return store(store(out, header), offset);
}

std::byte* encode_rts(std::byte* out, uint64_t stream, uint64_t message, uint32_t segment,
                      const ReadOffer& offer) {
  assert(message != 0 && offer.length != 0);
  FrameHeader header;
  header.body_length = kRtsBodySize;
  header.type = FrameType::kRts;
  header.stream = stream;
  header.message = message;
  header.first_segment = segment;
  return store(store(out, header), offer);
}

std::byte* encode_fin(std::byte* out, std::span<const uint64_t> ids) {
  assert(!ids.empty() && ids.size() <= kMaxFinIds);
  FrameHeader header;
  header.body_length = static_cast<uint32_t>(ids.size_bytes());
  header.type = FrameType::kFin;
  return store_bytes(store(out, header), ids.data(), ids.size_bytes());
}

std::byte* encode_credit(std::byte* out, uint64_t stream, uint64_t bytes) {
  assert(bytes != 0);
  FrameHeader header;
  header.body_length = kCreditBodySize;
  header.type = FrameType::kCredit;
  header.stream = stream;
  return store(store(out, header), bytes);
}

std::byte* encode_abort(std::byte* out, uint64_t stream, uint64_t message) {
  assert(message != 0);
  FrameHeader header;
  header.type = FrameType::kAbort;
  header.stream = stream;
  header.message = message;
  return store(out, header);
}

std::byte* encode_unmappable(std::byte* out, uint64_t lease) {
  FrameHeader header;
  header.body_length = kUnmappableBodySize;
  header.type = FrameType::kUnmappable;
  return store(store(out, header), lease);
}

std::byte* encode_goaway(std::byte* out, Code code, std::string_view reason) {
  reason = cut_utf8(reason, kMaxGoAwayReason);
  FrameHeader header;
  header.body_length = static_cast<uint32_t>(sizeof(uint32_t) + reason.size());
  header.type = FrameType::kGoAway;
  out = store(store(out, header), static_cast<uint32_t>(code));
  return store_bytes(out, reason.data(), reason.size());
}

}  // namespace tw::wire
