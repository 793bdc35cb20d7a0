// SPDX-License-Identifier: Apache-2.0
// One good frame of each type, and what the decoders say of a frame.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "test/wire/support.h"
#include "wire/one_sided_frames.h"

namespace tw::wire {

using test::Bytes;
using test::hex;

inline constexpr Limits kLimits;

inline std::span<const std::byte, kFrameHeaderSize> header_of(const Bytes& frame) {
  REQUIRE(frame.size() >= kFrameHeaderSize);
  return std::span<const std::byte, kFrameHeaderSize>(frame.data(), kFrameHeaderSize);
}

inline std::span<const std::byte> body_of(const Bytes& frame) {
  return std::span(frame).subspan(kFrameHeaderSize);
}

inline FrameHeader good_header(const Bytes& frame, const Limits& limits = kLimits) {
  const auto header = decode_frame_header(header_of(frame), limits);
  REQUIRE(header.ok());
  REQUIRE(header->body_length == frame.size() - kFrameHeaderSize);
  return *header;
}

// What the decoders of a received frame say in the end.
inline Status verdict(const Bytes& frame, const Limits& limits = kLimits) {
  const auto header = decode_frame_header(header_of(frame), limits);
  if (!header.ok()) return header.status();
  const auto body = body_of(frame);
  const auto of = [](const auto& result) { return result.ok() ? Status() : result.status(); };
  switch (header->type) {
    case FrameType::kMessage: {
      std::vector<SegmentInfo> segments(header->segment_count);
      return of(decode_message_body(*header, body, limits, segments));
    }
    case FrameType::kData:
      return of(decode_data_prefix(*header, body.first<kDataPrefixSize>(), limits));
    case FrameType::kRts:
      return of(decode_rts_body(*header, body, limits));
    case FrameType::kFin:
      return of(decode_fin_body(*header, body));
    case FrameType::kCredit:
      return of(decode_credit_body(*header, body));
    case FrameType::kGoAway:
      return of(decode_goaway_body(*header, body));
    case FrameType::kRegion:
      return of(decode_region_body(*header, body));
    case FrameType::kRegionGone:
      return of(decode_region_gone_body(*header, body));
    case FrameType::kOperation:
      return of(decode_operation_prefix(*header, body.first<kOperationPrefixSize>(), limits));
    case FrameType::kOutcome:
      return of(decode_outcome_prefix(*header, body.first<kOutcomePrefixSize>(), limits));
    case FrameType::kUnmappable:
      return of(decode_unmappable_body(*header, body));
    case FrameType::kEager:
    case FrameType::kAbort:
      break;
  }
  return {};
}

inline Bytes message_frame(uint64_t stream, uint64_t message,
                           const std::vector<SegmentInfo>& segments, const Bytes& header,
                           const Bytes& inline_bytes) {
  Bytes frame(message_prefix_size(segments) + header.size() + inline_bytes.size());
  std::byte* end = encode_message_prefix(frame.data(), stream, message, segments, header.size());
  REQUIRE(end == frame.data() + message_prefix_size(segments));
  end = std::copy(header.begin(), header.end(), end);
  end = std::copy(inline_bytes.begin(), inline_bytes.end(), end);
  REQUIRE(end == frame.data() + frame.size());
  return frame;
}

// One segment of each kind: 3 entries before a descriptor's, then header and inline bytes.
inline const std::vector<SegmentInfo>& one_of_each() {
  static const std::vector<SegmentInfo> segments = {
      {3, SegmentKind::kInline, {}},
      {5, SegmentKind::kEager, {}},
      {7, SegmentKind::kPush, {}},
      {9, SegmentKind::kRead, {}},
      {11, SegmentKind::kMap, {0x0a, 0x0b, 0x0c00, 0x0d}},
  };
  return segments;
}

inline Bytes sample_message() {
  return message_frame(2, 1, one_of_each(), hex("f0 f1"), hex("e0 e1 e2"));
}

inline Bytes sample_rts() {
  Bytes frame(kRtsFrameSize);
  encode_rts(frame.data(), 2, 1, 3, {4, 5, 6, 7, 8, 9});
  return frame;
}

inline Bytes sample_data() {
  Bytes frame(kDataFramePrefixSize + 4);
  encode_data_prefix(frame.data(), 2, 1, 3, 4096, 4);
  return frame;
}

inline Bytes sample_eager() {
  Bytes frame(kEagerPrefixSize + 4);
  encode_eager_prefix(frame.data(), 2, 1, 3, 6, 4);
  return frame;
}

inline Bytes sample_fin() {
  const std::vector<uint64_t> ids = {0x11, 0x22};
  Bytes frame(fin_frame_size(ids.size()));
  encode_fin(frame.data(), ids);
  return frame;
}

inline Bytes sample_credit() {
  Bytes frame(kCreditFrameSize);
  encode_credit(frame.data(), 2, 65536);
  return frame;
}

inline Bytes sample_abort() {
  Bytes frame(kAbortFrameSize);
  encode_abort(frame.data(), 2, 1);
  return frame;
}

inline Bytes sample_unmappable() {
  Bytes frame(kUnmappableFrameSize);
  encode_unmappable(frame.data(), 0x33);
  return frame;
}

inline Bytes sample_goaway() {
  Bytes frame(kMaxGoAwayFrameSize);
  frame.resize(
      static_cast<size_t>(encode_goaway(frame.data(), Code::kUnavailable, "bye") - frame.data()));
  return frame;
}

inline Bytes sample_region() {
  Bytes frame(kRegionFrameSize);
  encode_region(frame.data(), {7, 4096, 0x1000, 5, 3});
  return frame;
}

inline Bytes sample_region_gone() {
  Bytes frame(kRegionGoneFrameSize);
  encode_region_gone(frame.data(), 7);
  return frame;
}

inline Bytes operation_frame(const OperationFrame& operation, const Bytes& payload = {}) {
  Bytes frame(kOperationFramePrefixSize);
  encode_operation_prefix(frame.data(), operation);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

inline Bytes sample_write() {
  return operation_frame({9, 7, 16, 3, 0, 0, OperationKind::kWriteImmediate, 6}, hex("e0 e1 e2"));
}

inline Bytes sample_swap() {
  return operation_frame({9, 7, 16, 8, 1, 2, OperationKind::kCompareSwap, 0});
}

inline Bytes outcome_frame(uint64_t id, Code code, const Bytes& rest) {
  Bytes frame(kOutcomeFramePrefixSize);
  encode_outcome_prefix(frame.data(), {id, code, static_cast<uint32_t>(rest.size())});
  frame.insert(frame.end(), rest.begin(), rest.end());
  return frame;
}

inline Bytes sample_outcome() { return outcome_frame(9, Code::kNotFound, hex("6e 6f")); }

}  // namespace tw::wire
