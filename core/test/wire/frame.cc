// SPDX-License-Identifier: Apache-2.0
#include "wire/frame.h"

#include "test/wire/frame_samples.h"

namespace tw::wire {
namespace {

using test::Random;

SegmentInfo random_segment(Random& random) {
  SegmentInfo segment;
  segment.kind = static_cast<SegmentKind>(random.up_to(5));
  switch (segment.kind) {
    case SegmentKind::kInline:
      segment.length = random.chance(20) ? 0 : random.up_to(300);
      break;
    case SegmentKind::kEager:
      segment.length = random.up_to(kLimits.max_frame_body);
      break;
    case SegmentKind::kMap:
    case SegmentKind::kReturn:
      segment.map = {static_cast<uint32_t>(random.number()), static_cast<uint32_t>(random.number()),
                     random.number() >> 1, random.number()};
      [[fallthrough]];
    case SegmentKind::kPush:
    case SegmentKind::kRead:
      segment.length = segment.kind == SegmentKind::kReturn ? kLeastReturned : 1;
      segment.length += random.up_to(uint64_t{1} << 28);
      break;
  }
  return segment;
}

TEST_CASE("frames have the bytes of docs/wire-format.md") {
  CHECK(sample_message() == hex("6d000000 01 00 0500 0200000000000000 0100000000000000"
                                "02000000 00000000"
                                "0300000000000000 00000000 00000000"
                                "0500000000000000 01000000 00000000"
                                "0700000000000000 02000000 00000000"
                                "0900000000000000 03000000 00000000"
                                "0b00000000000000 04000000 00000000"
                                "0a000000 0b000000 000c000000000000 0d00000000000000"
                                "f0f1 e0e1e2"));
  CHECK(sample_eager() == hex("04000000 02 00 0600 0200000000000000 0100000000000000"
                              "00000000 03000000 00000000"));
  CHECK(sample_data() == hex("0c000000 03 00 0000 0200000000000000 0100000000000000"
                             "00000000 03000000 0010000000000000 00000000"));
  CHECK(sample_rts() == hex("28000000 04 00 0000 0200000000000000 0100000000000000"
                            "00000000 03000000 04000000 05000000 0600000000000000"
                            "0700000000000000 0800000000000000 0900000000000000"));
  CHECK(sample_fin() == hex("10000000 05 00 0000 0000000000000000 0000000000000000"
                            "00000000 00000000 1100000000000000 2200000000000000"));
  CHECK(sample_credit() == hex("08000000 06 00 0000 0200000000000000 0000000000000000"
                               "00000000 00000000 0000010000000000"));
  CHECK(sample_abort() == hex("00000000 07 00 0000 0200000000000000 0100000000000000"
                              "00000000 00000000"));
  CHECK(sample_unmappable() == hex("08000000 0d 00 0000 0000000000000000 0000000000000000"
                                   "00000000 00000000 3300000000000000"));
  CHECK(sample_goaway() == hex("07000000 08 00 0000 0000000000000000 0000000000000000"
                               "00000000 00000000 0e000000 627965"));
  CHECK(sample_region() == hex("20000000 09 00 0000 0000000000000000 0000000000000000"
                               "00000000 00000000 0700000000000000 0010000000000000"
                               "0010000000000000 05000000 03000000"));
  CHECK(sample_region_gone() == hex("08000000 0a 00 0000 0000000000000000 0000000000000000"
                                    "00000000 00000000 0700000000000000"));
  CHECK(sample_write() == hex("3b000000 0b 00 0000 0000000000000000 0000000000000000"
                              "00000000 00000000 0900000000000000 0700000000000000"
                              "1000000000000000 0300000000000000 0000000000000000"
                              "0000000000000000 02000000 06000000 e0e1e2"));
  CHECK(sample_swap() == hex("38000000 0b 00 0000 0000000000000000 0000000000000000"
                             "00000000 00000000 0900000000000000 0700000000000000"
                             "1000000000000000 0800000000000000 0100000000000000"
                             "0200000000000000 04000000 00000000"));
  CHECK(sample_outcome() == hex("12000000 0c 00 0000 0000000000000000 0000000000000000"
                                "00000000 00000000 0900000000000000 05000000 00000000 6e6f"));
}

TEST_CASE("random messages come back as they were sent") {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SegmentInfo> segments(random.up_to(random.chance(5) ? 200 : 8));
    size_t inline_total = 0;
    uint64_t total = 0;
    for (auto& segment : segments) {
      segment = random_segment(random);
      total += segment.length;
      if (segment.kind == SegmentKind::kInline) inline_total += segment.length;
    }
    Limits limits = kLimits;
    limits.max_message_bytes = total + random.up_to(3);
    const Bytes header_bytes = random.bytes(random.up_to(100));
    const Bytes inline_bytes = random.bytes(inline_total);
    const uint64_t stream = random.number();
    const uint64_t message = 1 + random.up_to(UINT64_MAX - 1);
    const Bytes frame = message_frame(stream, message, segments, header_bytes, inline_bytes);
    REQUIRE(check_message(segments, header_bytes.size(), limits).ok());

    const FrameHeader header = good_header(frame, limits);
    CHECK(header.type == FrameType::kMessage);
    CHECK(header.stream == stream);
    CHECK(header.message == message);
    REQUIRE(header.segment_count == segments.size());
    std::vector<SegmentInfo> decoded(segments.size() + random.up_to(2));
    const auto head = decode_message_body(header, body_of(frame), limits, decoded);
    REQUIRE(head.ok());
    decoded.resize(segments.size());
    CHECK(decoded == segments);
    CHECK(head->total_bytes == total);
    CHECK(Bytes(head->header.begin(), head->header.end()) == header_bytes);
    CHECK(Bytes(head->inline_bytes.begin(), head->inline_bytes.end()) == inline_bytes);
  }
}

TEST_CASE("an empty message is a frame of its own") {
  const Bytes frame = message_frame(0, 1, {}, {}, {});
  REQUIRE(frame.size() == kFrameHeaderSize);
  const auto head = decode_message_body(good_header(frame), {}, kLimits, {});
  REQUIRE(head.ok());
  CHECK(head->total_bytes == 0);
}

TEST_CASE("random frames of the other types come back as they were sent") {
  Random random(2);
  for (int round = 0; round < 500; ++round) {
    const uint64_t stream = random.number();
    const uint64_t message = 1 + random.up_to(UINT64_MAX - 1);
    const auto segment = static_cast<uint32_t>(random.up_to(kLimits.max_segments - 1));
    const auto check_named = [&](const FrameHeader& header, FrameType type) {
      CHECK(header.type == type);
      CHECK(header.stream == stream);
      CHECK(header.message == message);
      CHECK(header.first_segment == segment);
    };
    {
      const auto count =
          static_cast<uint16_t>(1 + random.up_to(kLimits.max_segments - segment - 1));
      Bytes frame(kEagerPrefixSize + 1 + random.up_to(50));
      const auto length = static_cast<uint32_t>(frame.size() - kEagerPrefixSize);
      encode_eager_prefix(frame.data(), stream, message, segment, count, length);
      const FrameHeader header = good_header(frame);
      check_named(header, FrameType::kEager);
      CHECK(header.segment_count == count);
    }
    {
      Bytes frame(kDataFramePrefixSize + 1 + random.up_to(50));
      const auto length = static_cast<uint32_t>(frame.size() - kDataFramePrefixSize);
      const uint64_t offset = random.up_to(kLimits.max_message_bytes - length);
      encode_data_prefix(frame.data(), stream, message, segment, offset, length);
      const FrameHeader header = good_header(frame);
      check_named(header, FrameType::kData);
      const auto chunk =
          decode_data_prefix(header, body_of(frame).first<kDataPrefixSize>(), kLimits);
      REQUIRE(chunk.ok());
      CHECK(chunk->segment == segment);
      CHECK(chunk->offset == offset);
      CHECK(chunk->length == length);
    }
    {
      ReadOffer offer;
      offer.slab = static_cast<uint32_t>(random.number());
      offer.generation = static_cast<uint32_t>(random.number());
      offer.length = 1 + random.up_to(kLimits.max_chunk_bytes - 1);
      offer.offset = random.up_to(UINT64_MAX - offer.length);
      offer.segment_offset = random.up_to(kLimits.max_message_bytes - offer.length);
      offer.rendezvous = random.number();
      Bytes frame(kRtsFrameSize);
      encode_rts(frame.data(), stream, message, segment, offer);
      const FrameHeader header = good_header(frame);
      check_named(header, FrameType::kRts);
      const auto decoded = decode_rts_body(header, body_of(frame), kLimits);
      REQUIRE(decoded.ok());
      CHECK(*decoded == offer);
    }
    {
      std::vector<uint64_t> ids(1 + random.up_to(random.chance(5) ? kMaxFinIds - 1 : 9));
      for (auto& id : ids) id = random.number();
      Bytes frame(fin_frame_size(ids.size()));
      encode_fin(frame.data(), ids);
      const auto decoded = decode_fin_body(good_header(frame), body_of(frame));
      REQUIRE(decoded.ok());
      REQUIRE(decoded->size() == ids.size());
      for (size_t i = 0; i < ids.size(); ++i) CHECK((*decoded)[i] == ids[i]);
    }
    {
      const uint64_t bytes = 1 + random.up_to(UINT64_MAX - 1);
      Bytes frame(kCreditFrameSize);
      encode_credit(frame.data(), stream, bytes);
      const FrameHeader header = good_header(frame);
      CHECK(header.stream == stream);
      const auto decoded = decode_credit_body(header, body_of(frame));
      REQUIRE(decoded.ok());
      CHECK(*decoded == bytes);
    }
  }
}

TEST_CASE("random regions, operations and outcomes come back as they were sent") {
  Random random(4);
  for (int round = 0; round < 500; ++round) {
    {
      Region region;
      region.id = random.number();
      region.length = 1 + random.up_to(UINT64_MAX - 1);
      region.address = random.up_to(UINT64_MAX - region.length);
      region.key = static_cast<uint32_t>(random.number());
      region.rights = static_cast<uint32_t>(random.up_to(kRegionRights));
      Bytes frame(kRegionFrameSize);
      encode_region(frame.data(), region);
      const auto decoded = decode_region_body(good_header(frame), body_of(frame));
      REQUIRE(decoded.ok());
      CHECK(*decoded == region);
    }
    {
      Bytes frame(kRegionGoneFrameSize);
      const uint64_t region = random.number();
      encode_region_gone(frame.data(), region);
      const auto decoded = decode_region_gone_body(good_header(frame), body_of(frame));
      REQUIRE(decoded.ok());
      CHECK(*decoded == region);
    }
    {
      OperationFrame operation;
      operation.id = 1 + random.up_to(UINT64_MAX - 1);
      operation.region = random.number();
      operation.offset = random.number();
      operation.kind = static_cast<OperationKind>(random.up_to(4));
      operation.length = updates(operation.kind) ? 8 : random.up_to(kLimits.max_chunk_bytes);
      if (writes(operation.kind)) operation.length = random.up_to(100);
      if (updates(operation.kind)) operation.operand = random.number();
      if (operation.kind == OperationKind::kCompareSwap) operation.expected = random.number();
      if (operation.kind == OperationKind::kWriteImmediate)
        operation.immediate = static_cast<uint32_t>(random.number());
      const Bytes frame =
          operation_frame(operation, Bytes(writes(operation.kind) ? operation.length : 0));
      const auto decoded = decode_operation_prefix(
          good_header(frame), body_of(frame).first<kOperationPrefixSize>(), kLimits);
      REQUIRE(decoded.ok());
      CHECK(*decoded == operation);
    }
    {
      const uint64_t id = random.number();
      const auto code = static_cast<Code>(random.up_to(16));
      const Bytes rest(random.up_to(kMaxOutcomeDetails));
      const Bytes frame = outcome_frame(id, code, rest);
      const auto decoded = decode_outcome_prefix(
          good_header(frame), body_of(frame).first<kOutcomePrefixSize>(), kLimits);
      REQUIRE(decoded.ok());
      CHECK(*decoded == OutcomeFrame{id, code, static_cast<uint32_t>(rest.size())});
    }
  }
}

TEST_CASE("GOAWAY carries every status code") {
  for (int code = 0; code <= 16; ++code) {
    Bytes frame(kMaxGoAwayFrameSize);
    const std::byte* end = encode_goaway(frame.data(), static_cast<Code>(code), "");
    frame.resize(static_cast<size_t>(end - frame.data()));
    const auto decoded = decode_goaway_body(good_header(frame), body_of(frame));
    REQUIRE(decoded.ok());
    CHECK(static_cast<int>(decoded->code) == code);
    CHECK(decoded->reason.empty());
  }
}

TEST_CASE("the reason of GOAWAY is cut between characters") {
  std::string reason(kMaxGoAwayReason - 1, 'x');
  reason += "\xc3\xa9 and more";
  Bytes frame(kMaxGoAwayFrameSize);
  const std::byte* end = encode_goaway(frame.data(), Code::kAborted, reason);
  frame.resize(static_cast<size_t>(end - frame.data()));
  const auto decoded = decode_goaway_body(good_header(frame), body_of(frame));
  REQUIRE(decoded.ok());
  CHECK(decoded->code == Code::kAborted);
  CHECK(decoded->reason == std::string(kMaxGoAwayReason - 1, 'x'));
}

}  // namespace
}  // namespace tw::wire
