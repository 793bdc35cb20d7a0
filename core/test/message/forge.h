// SPDX-License-Identifier: Apache-2.0
// Frames as a peer could send them that is no sender of ours. Payload is zeros.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "test/wire/support.h"
#include "transport/transport.h"
#include "wire/frame.h"

namespace tw::test {

// Sends them, as soon as the other end has taken enough.
inline void say(Transport& transport, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const iovec run{const_cast<std::byte*>(bytes.data()), bytes.size()};
    auto taken = transport.send({&run, 1});
    REQUIRE_MESSAGE(taken.ok(), taken.status().details());
    bytes = bytes.subspan(*taken);
    if (*taken == 0) (void)transport.sleep(true, now() + 100 * kMillisecond);
  }
}

inline Bytes message(uint64_t stream, uint64_t number,
                     const std::vector<wire::SegmentInfo>& segments, const Bytes& header,
                     const Bytes& inline_bytes) {
  Bytes out(wire::message_prefix_size(segments));
  wire::encode_message_prefix(out.data(), stream, number, segments, header.size());
  out.insert(out.end(), header.begin(), header.end());
  out.insert(out.end(), inline_bytes.begin(), inline_bytes.end());
  return out;
}

// A message of one segment.
inline Bytes announce(uint64_t stream, uint64_t number, wire::SegmentKind kind, uint64_t length) {
  return message(stream, number, {{length, kind, {}}}, {},
                 Bytes(kind == wire::SegmentKind::kInline ? length : 0));
}

inline Bytes eager(uint64_t stream, uint64_t number, uint32_t first, uint16_t segments,
                   uint32_t bytes) {
  Bytes out(wire::kEagerPrefixSize + bytes);
  wire::encode_eager_prefix(out.data(), stream, number, first, segments, bytes);
  return out;
}

inline Bytes data(uint64_t stream, uint64_t number, uint32_t segment, uint64_t offset,
                  uint32_t bytes) {
  Bytes out(wire::kDataFramePrefixSize + bytes);
  wire::encode_data_prefix(out.data(), stream, number, segment, offset, bytes);
  return out;
}

inline Bytes rts(uint64_t stream, uint64_t number, uint32_t segment, uint64_t offset,
                 uint64_t length) {
  wire::ReadOffer offer;
  offer.length = length;
  offer.segment_offset = offset;
  offer.rendezvous = 77;
  Bytes out(wire::kRtsFrameSize);
  wire::encode_rts(out.data(), stream, number, segment, offer);
  return out;
}

inline Bytes abort(uint64_t stream, uint64_t number) {
  Bytes out(wire::kAbortFrameSize);
  wire::encode_abort(out.data(), stream, number);
  return out;
}

inline Bytes fin(const std::vector<uint64_t>& ids) {
  Bytes out(wire::fin_frame_size(ids.size()));
  wire::encode_fin(out.data(), ids);
  return out;
}

}  // namespace tw::test
