// SPDX-License-Identifier: Apache-2.0
// Frames: what decodes is within the limits, and encodes to the same bytes again.
#include "wire/frame.h"

#include <algorithm>
#include <cstring>

#include "fuzz/fuzz.h"
#include "wire/one_sided_frames.h"

namespace tw::wire {
namespace {

using fuzz::Bytes;
using fuzz::require;
using fuzz::require_sentence;

Limits choose_limits(fuzz::Input& input) {
  Limits limits;
  if ((input.byte() & 1) == 0) return limits;
  limits.max_message_bytes = input.byte() * uint64_t{64};
  limits.max_header_bytes = input.byte();
  limits.max_segments = input.byte();
  limits.max_frame_body = input.byte() * 8u;
  limits.max_chunk_bytes = input.byte() * 8u;
  return limits;
}

void require_within(const FrameHeader& h, const Limits& limits) {
  switch (h.type) {
    case FrameType::kMessage:
      require(h.segment_count <= limits.max_segments, "segments within the limit");
      require(h.header_length <= limits.max_header_bytes, "header within the limit");
      [[fallthrough]];
    case FrameType::kEager:
      require(h.body_length <= limits.max_frame_body, "body within the limit");
      return;
    case FrameType::kData:
      require(h.body_length <= kDataPrefixSize + uint64_t{limits.max_chunk_bytes},
              "chunk within the limit");
      return;
    case FrameType::kOperation:
      require(h.body_length <= kOperationPrefixSize + uint64_t{limits.max_chunk_bytes},
              "operation within the limit");
      return;
    case FrameType::kOutcome:
      require(h.body_length <= kOutcomePrefixSize + std::max(uint64_t{limits.max_chunk_bytes},
                                                             uint64_t{kMaxOutcomeDetails}),
              "outcome within the limit");
      return;
    default:
      require(h.body_length <= kMaxFinIds * sizeof(uint64_t), "control body is small");
  }
}

Bytes message(const FrameHeader& h, const Bytes& body, const Limits& limits) {
  std::vector<SegmentInfo> segments(h.segment_count);
  const auto head = decode_message_body(h, body, limits, segments);
  if (!head.ok()) {
    require_sentence(head.status());
    return {};
  }
  uint64_t total = 0;
  for (const auto& segment : segments) total += segment.length;
  require(total == head->total_bytes && total <= limits.max_message_bytes, "total within limit");
  require(check_message(segments, head->header.size(), limits).ok(), "both ends judge alike");
  Bytes out(message_prefix_size(segments) + head->header.size() + head->inline_bytes.size());
  std::byte* end =
      encode_message_prefix(out.data(), h.stream, h.message, segments, head->header.size());
  end = std::copy(head->header.begin(), head->header.end(), end);
  end = std::copy(head->inline_bytes.begin(), head->inline_bytes.end(), end);
  require(end == out.data() + out.size(), "size as promised");
  return out;
}

// The frame encoded anew, or nothing when its body was refused.
Bytes again(const FrameHeader& h, const Bytes& body, const Limits& limits) {
  Bytes out(kFrameHeaderSize + body.size() + kMaxGoAwayFrameSize);
  std::byte* end = out.data();
  const auto encode_if_good = [&](const auto& decoded, auto&& encode) {
    if (decoded.ok()) {
      end = encode(*decoded);
    } else {
      require_sentence(decoded.status());
    }
  };
  const auto copy = [](const std::byte* from, size_t length, std::byte* to) {
    return std::copy_n(from, length, to);
  };
  switch (h.type) {
    case FrameType::kMessage:
      return message(h, body, limits);
    case FrameType::kEager:
      end = encode_eager_prefix(end, h.stream, h.message, h.first_segment, h.segment_count,
                                h.body_length);
      end = copy(body.data(), body.size(), end);
      break;
    case FrameType::kData:
      encode_if_good(decode_data_prefix(h, std::span(body).first<kDataPrefixSize>(), limits),
                     [&](const DataChunk& chunk) {
                       require(chunk.offset + chunk.length <= limits.max_message_bytes,
                               "chunk in message");
                       end = encode_data_prefix(end, h.stream, h.message, chunk.segment,
                                                chunk.offset, chunk.length);
                       return copy(body.data() + kDataPrefixSize, chunk.length, end);
                     });
      break;
    case FrameType::kRts:
      encode_if_good(decode_rts_body(h, body, limits), [&](const ReadOffer& offer) {
        return encode_rts(end, h.stream, h.message, h.first_segment, offer);
      });
      break;
    case FrameType::kFin:
      encode_if_good(decode_fin_body(h, body), [&](const IdList& list) {
        std::vector<uint64_t> ids;
        for (size_t i = 0; i < list.size(); ++i) ids.push_back(list[i]);
        return encode_fin(end, ids);
      });
      break;
    case FrameType::kCredit:
      encode_if_good(decode_credit_body(h, body),
                     [&](uint64_t bytes) { return encode_credit(end, h.stream, bytes); });
      break;
    case FrameType::kAbort:
      end = encode_abort(end, h.stream, h.message);
      break;
    case FrameType::kUnmappable:
      encode_if_good(decode_unmappable_body(h, body),
                     [&](uint64_t lease) { return encode_unmappable(end, lease); });
      break;
    case FrameType::kGoAway:
      encode_if_good(decode_goaway_body(h, body),
                     [&](const GoAway& a) { return encode_goaway(end, a.code, a.reason); });
      break;
    case FrameType::kRegion:
      encode_if_good(decode_region_body(h, body), [&](const Region& region) {
        require(region.length <= UINT64_MAX - region.address, "region does not overflow");
        return encode_region(end, region);
      });
      break;
    case FrameType::kRegionGone:
      encode_if_good(decode_region_gone_body(h, body),
                     [&](uint64_t region) { return encode_region_gone(end, region); });
      break;
    case FrameType::kOperation:
      encode_if_good(
          decode_operation_prefix(h, std::span(body).first<kOperationPrefixSize>(), limits),
          [&](const OperationFrame& operation) {
            require(operation.length <= limits.max_chunk_bytes, "length within the limit");
            return copy(body.data() + kOperationPrefixSize, body.size() - kOperationPrefixSize,
                        encode_operation_prefix(end, operation));
          });
      break;
    case FrameType::kOutcome:
      encode_if_good(decode_outcome_prefix(h, std::span(body).first<kOutcomePrefixSize>(), limits),
                     [&](const OutcomeFrame& outcome) {
                       return copy(body.data() + kOutcomePrefixSize, outcome.length,
                                   encode_outcome_prefix(end, outcome));
                     });
      break;
  }
  out.resize(static_cast<size_t>(end - out.data()));
  return out;
}

void one(fuzz::Input input) {
  const Limits limits = choose_limits(input);
  Bytes head = input.take(kFrameHeaderSize);
  const std::span<const std::byte, kFrameHeaderSize> fixed(head.data(), kFrameHeaderSize);
  if (const auto h = decode_frame_header(fixed, limits); h.ok()) require_within(*h, limits);

  // Again with the length of what is there, so that the body gets its turn.
  const Bytes body = input.rest();
  const auto length = static_cast<uint32_t>(body.size());
  std::memcpy(head.data(), &length, sizeof length);
  const auto h = decode_frame_header(fixed, limits);
  if (!h.ok()) return require_sentence(h.status());
  require_within(*h, limits);
  const Bytes out = again(*h, body, limits);
  if (out.empty()) return;
  head.insert(head.end(), body.begin(), body.end());
  require(out == head, "what was decoded encodes to the same bytes");
}

}  // namespace
}  // namespace tw::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::wire::one({data, size});
  return 0;
}
