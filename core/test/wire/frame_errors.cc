// SPDX-License-Identifier: Apache-2.0
// What a peer can do wrong with frames.
#include <limits>

#include "test/wire/frame_samples.h"

namespace tw::wire {
namespace {

using test::check_says;
using test::poke;
using test::Random;

TEST_CASE("a body that is cut anywhere is refused") {
  const Bytes whole = sample_message();
  const size_t body = whole.size() - kFrameHeaderSize;
  for (size_t cut = 0; cut < body; ++cut) {
    Bytes frame(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(kFrameHeaderSize + cut));
    poke(frame, 0, static_cast<uint32_t>(cut));
    const Status status = verdict(frame);
    INFO("cut to " << cut);
    CHECK(status.code() == Code::kInternal);
    // All but one are found by body_length; where a descriptor should stand, its segment is named.
    const bool named =
        status.details().find("body_length is " + std::to_string(cut)) != std::string::npos ||
        status.details().find("segment 4") != std::string::npos;
    INFO(status.details());
    CHECK(named);
  }
  for (const Bytes& frame :
       {sample_rts(), sample_fin(), sample_credit(), sample_unmappable(), sample_goaway(),
        sample_region(), sample_region_gone(), sample_swap()}) {
    for (size_t cut = 0; cut + kFrameHeaderSize < frame.size(); ++cut) {
      Bytes shorter(frame.begin(),
                    frame.begin() + static_cast<std::ptrdiff_t>(kFrameHeaderSize + cut));
      poke(shorter, 0, static_cast<uint32_t>(cut));
      const Status status = verdict(shorter);
      const bool shorter_but_whole = (frame == sample_fin() && cut == 8) ||
                                     (frame == sample_goaway() && cut >= sizeof(uint32_t));
      INFO("type " << std::to_integer<int>(frame[4]) << " cut to " << cut);
      if (shorter_but_whole) {
        CHECK(status.ok());
      } else {
        check_says(status, Code::kInternal, {"protocol error", "body_length is"});
      }
    }
  }
}

TEST_CASE("a body of another length than announced is the receiver's own mistake") {
  const Bytes frame = sample_credit();
  const auto short_body = body_of(frame).first(4);
  check_says(decode_credit_body(good_header(frame), short_body).status(), Code::kInternal,
             {"local error", "4 bytes", "CREDIT"});
  check_says(decode_fin_body(good_header(frame), body_of(frame)).status(), Code::kInternal,
             {"local error"});
  check_says(decode_rts_body(good_header(sample_rts()), short_body, kLimits).status(),
             Code::kInternal, {"local error", "RTS"});
  check_says(decode_fin_body(good_header(sample_fin()), short_body).status(), Code::kInternal,
             {"local error", "FIN"});
  check_says(decode_goaway_body(good_header(sample_goaway()), short_body).status(), Code::kInternal,
             {"local error", "GOAWAY"});
  check_says(
      decode_data_prefix(good_header(frame), body_of(frame).first<kDataPrefixSize>(), kLimits)
          .status(),
      Code::kInternal, {"local error", "CREDIT"});
  const Bytes message = sample_message();
  std::vector<SegmentInfo> room(5);
  check_says(decode_message_body(good_header(message), short_body, kLimits, room).status(),
             Code::kInternal, {"local error", "MESSAGE"});
  check_says(decode_region_body(good_header(sample_region()), short_body).status(), Code::kInternal,
             {"local error", "REGION"});
  check_says(decode_region_gone_body(good_header(sample_region_gone()), short_body).status(),
             Code::kInternal, {"local error", "REGION_GONE"});
  std::vector<SegmentInfo> too_few(4);
  check_says(decode_message_body(good_header(message), body_of(message), kLimits, too_few).status(),
             Code::kInternal, {"local error", "room for 4"});
}

TEST_CASE("every field of every frame is checked, and named when it is wrong") {
  struct Corruption {
    Bytes frame;
    size_t offset;
    size_t width;
    uint64_t value;
    std::vector<std::string_view> words;
  };
  constexpr size_t kBody = kFrameHeaderSize;
  constexpr size_t kDescriptor = kBody + 5 * kSegmentEntrySize;
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const std::vector<Corruption> corruptions = {
      {sample_message(), 0, 4, 108, {"MESSAGE", "body_length is 108"}},
      {sample_message(), 0, 4, 110, {"MESSAGE", "body_length is 110"}},
      {sample_message(), 0, 4, 81, {"MESSAGE", "body_length is 81", "below 82"}},
      {sample_message(), 0, 4, 0xffffffff, {"MESSAGE", "body_length is 4294967295", "limit"}},
      {sample_message(), 4, 1, 0, {"type is 0"}},
      {sample_message(), 4, 1, 14, {"type is 14"}},
      {sample_message(), 5, 1, 1, {"MESSAGE", "flags is 1"}},
      {sample_message(), 6, 2, 4, {"body_length is 109"}},
      {sample_message(), 6, 2, 0xffff, {"MESSAGE", "body_length is 109", "below"}},
      {sample_message(), 16, 8, 0, {"MESSAGE", "message is 0"}},
      {sample_message(), 24, 4, 1, {"body_length is 109"}},
      {sample_message(), 24, 4, 3, {"body_length is 109"}},
      {sample_message(), 24, 4, 0xffffffff, {"header_length is 4294967295", "limit of 1048576"}},
      {sample_message(), 28, 4, 1, {"MESSAGE", "first_segment is 1", "must be 0"}},
      {sample_message(), kBody, 8, 4, {"body_length is 109", "INLINE segments of 4"}},
      {sample_message(), kBody, 8, kMax, {"segment 0", "length is 18446744073709551615"}},
      {sample_message(), kBody + 8, 4, 6, {"segment 0", "kind is 6"}},
      {sample_message(), kBody + 8, 4, 4, {"segment 4", "no room for a descriptor"}},
      {sample_message(), kBody + 12, 4, 7, {"segment 0", "reserved is 7"}},
      {sample_message(), kBody + 16, 8, 5 << 20, {"segment 1", "length is 5242880", "EAGER"}},
      {sample_message(), kBody + 32, 8, 0, {"segment 2", "length is 0"}},
      {sample_message(), kBody + 48, 8, 0, {"segment 3", "length is 0"}},
      {sample_message(), kBody + 64, 8, 0, {"segment 4", "length is 0"}},
      {sample_message(), kBody + 64, 8, kMax - 20, {"segment 4", "length", "limit of 17179869184"}},
      {sample_message(), kDescriptor + 8, 8, kMax - 10, {"segment 4", "offset is 184467440737095"}},
      {sample_eager(), 0, 4, (4 << 20) + 1, {"EAGER", "body_length is 4194305", "limit"}},
      {sample_eager(), 0, 4, 0, {"EAGER", "body_length is 0"}},
      {sample_eager(), 5, 1, 128, {"EAGER", "flags is 128"}},
      {sample_eager(), 6, 2, 0, {"EAGER", "segment_count is 0"}},
      {sample_eager(), 6, 2, 65533, {"EAGER", "first_segment is 3", "65533 segments"}},
      {sample_eager(), 16, 8, 0, {"EAGER", "message is 0"}},
      {sample_eager(), 24, 4, 1, {"EAGER", "header_length is 1"}},
      {sample_eager(), 28, 4, 0xffffffff, {"EAGER", "first_segment is 4294967295"}},
      {sample_data(), 0, 4, 8, {"DATA", "body_length is 8", "below 9"}},
      {sample_data(), 0, 4, (64 << 20) + 9, {"DATA", "body_length is 67108873", "limit"}},
      {sample_data(), 6, 2, 1, {"DATA", "segment_count is 1"}},
      {sample_data(), 16, 8, 0, {"DATA", "message is 0"}},
      {sample_data(), 24, 4, 1, {"DATA", "header_length is 1"}},
      {sample_data(), 28, 4, 65535, {"DATA", "first_segment is 65535"}},
      {sample_data(), kBody, 8, kMax, {"DATA", "offset is 18446744073709551615"}},
      {sample_data(), kBody, 8, (uint64_t{16} << 30) - 3, {"DATA", "offset is 17179869181"}},
      {sample_rts(), 0, 4, 41, {"RTS", "body_length is 41"}},
      {sample_rts(), 6, 2, 1, {"RTS", "segment_count is 1"}},
      {sample_rts(), 16, 8, 0, {"RTS", "message is 0"}},
      {sample_rts(), 24, 4, 1, {"RTS", "header_length is 1"}},
      {sample_rts(), 28, 4, 65535, {"RTS", "first_segment is 65535"}},
      {sample_rts(), kBody + 8, 8, kMax, {"RTS", "offset is 18446744073709551615"}},
      {sample_rts(), kBody + 16, 8, 0, {"RTS", "length is 0"}},
      {sample_rts(), kBody + 16, 8, (64 << 20) + 1, {"RTS", "length is 67108865"}},
      {sample_rts(), kBody + 24, 8, kMax, {"RTS", "segment_offset is 18446744073709551615"}},
      {sample_fin(), 0, 4, 0, {"FIN", "body_length is 0"}},
      {sample_fin(), 0, 4, 15, {"FIN", "body_length is 15"}},
      {sample_fin(), 0, 4, 8200, {"FIN", "body_length is 8200", "limit of 8192"}},
      {sample_fin(), 6, 2, 2, {"FIN", "segment_count is 2"}},
      {sample_fin(), 8, 8, 2, {"FIN", "stream is 2"}},
      {sample_fin(), 16, 8, 1, {"FIN", "message is 1"}},
      {sample_fin(), 24, 4, 1, {"FIN", "header_length is 1"}},
      {sample_fin(), 28, 4, 1, {"FIN", "first_segment is 1"}},
      {sample_credit(), 0, 4, 9, {"CREDIT", "body_length is 9"}},
      {sample_credit(), 6, 2, 1, {"CREDIT", "segment_count is 1"}},
      {sample_credit(), 16, 8, 1, {"CREDIT", "message is 1"}},
      {sample_credit(), 24, 4, 1, {"CREDIT", "header_length is 1"}},
      {sample_credit(), 28, 4, 1, {"CREDIT", "first_segment is 1"}},
      {sample_credit(), kBody, 8, 0, {"CREDIT", "bytes is 0"}},
      {sample_abort(), 0, 4, 1, {"ABORT", "body_length is 1"}},
      {sample_abort(), 6, 2, 1, {"ABORT", "segment_count is 1"}},
      {sample_abort(), 16, 8, 0, {"ABORT", "message is 0"}},
      {sample_abort(), 24, 4, 1, {"ABORT", "header_length is 1"}},
      {sample_abort(), 28, 4, 1, {"ABORT", "first_segment is 1"}},
      {sample_unmappable(), 0, 4, 9, {"UNMAPPABLE", "body_length is 9"}},
      {sample_unmappable(), 8, 8, 1, {"UNMAPPABLE", "stream is 1"}},
      {sample_goaway(), 0, 4, 3, {"GOAWAY", "body_length is 3"}},
      {sample_goaway(), 0, 4, 1029, {"GOAWAY", "body_length is 1029"}},
      {sample_goaway(), 8, 8, 1, {"GOAWAY", "stream is 1"}},
      {sample_goaway(), 16, 8, 1, {"GOAWAY", "message is 1"}},
      {sample_goaway(), kBody, 4, 17, {"GOAWAY", "code is 17"}},
      {sample_goaway(), kBody + 4, 1, 0xff, {"GOAWAY", "reason", "\\xffye"}},
      {sample_region(), 0, 4, 31, {"REGION", "body_length is 31"}},
      {sample_region(), 0, 4, 33, {"REGION", "body_length is 33"}},
      {sample_region(), 8, 8, 1, {"REGION", "stream is 1"}},
      {sample_region(), 16, 8, 1, {"REGION", "message is 1"}},
      {sample_region(), 28, 4, 1, {"REGION", "first_segment is 1"}},
      {sample_region(), kBody + 8, 8, 0, {"REGION", "length is 0"}},
      {sample_region(), kBody + 8, 8, kMax, {"REGION", "address is 4096", "overflows"}},
      {sample_region(), kBody + 28, 4, 8, {"REGION", "rights is 8"}},
      {sample_region_gone(), 0, 4, 7, {"REGION_GONE", "body_length is 7"}},
      {sample_region_gone(), 0, 4, 9, {"REGION_GONE", "body_length is 9"}},
      {sample_region_gone(), 16, 8, 1, {"REGION_GONE", "message is 1"}},
      {sample_write(), 0, 4, 55, {"OPERATION", "body_length is 55", "below 56"}},
      {sample_write(), 0, 4, (64 << 20) + 57, {"OPERATION", "body_length is 67108921", "limit"}},
      {sample_write(), 6, 2, 1, {"OPERATION", "segment_count is 1"}},
      {sample_write(), 8, 8, 1, {"OPERATION", "stream is 1"}},
      {sample_write(), kBody, 8, 0, {"OPERATION", "id is 0"}},
      {sample_write(), kBody + 24, 8, 4, {"OPERATION", "length is 4", "3 bytes follow"}},
      {sample_write(), kBody + 24, 8, kMax, {"OPERATION", "length is 18446744073709551615"}},
      {sample_write(), kBody + 32, 8, 1, {"OPERATION", "operand is 1"}},
      {sample_write(), kBody + 40, 8, 1, {"OPERATION", "expected is 1"}},
      {sample_write(), kBody + 48, 4, 5, {"OPERATION", "kind is 5"}},
      {sample_write(), kBody + 48, 4, 1, {"OPERATION", "immediate is 6"}},
      {sample_write(), kBody + 48, 4, 0, {"OPERATION", "body_length is 59", "only writes"}},
      {sample_swap(), kBody + 24, 8, 4, {"OPERATION", "length is 4", "must be 8"}},
      {sample_swap(), kBody + 48, 4, 3, {"OPERATION", "expected is 2"}},
      {sample_swap(), kBody + 48, 4, 0, {"OPERATION", "operand is 1"}},
      {sample_outcome(), 0, 4, 15, {"OUTCOME", "body_length is 15", "below 16"}},
      {sample_outcome(), 0, 4, (64 << 20) + 17, {"OUTCOME", "body_length is 67108881", "limit"}},
      {sample_outcome(), 0, 4, 1041, {"OUTCOME", "body_length is 1041", "limit of 1040"}},
      {sample_outcome(), 16, 8, 1, {"OUTCOME", "message is 1"}},
      {sample_outcome(), kBody + 8, 4, 17, {"OUTCOME", "code is 17"}},
      {sample_outcome(), kBody + 12, 4, 1, {"OUTCOME", "reserved is 1"}},
  };
  for (const auto& corruption : corruptions) {
    Bytes frame = corruption.frame;
    REQUIRE(verdict(frame).ok());
    std::memcpy(frame.data() + corruption.offset, &corruption.value, corruption.width);
    // A changed length is announced and kept, so that the decoder sees a consistent frame.
    if (corruption.offset == 0) {
      frame.resize(kFrameHeaderSize + std::min<uint64_t>(corruption.value, 10'000));
    }
    INFO("offset " << corruption.offset << " set to " << corruption.value);
    const Status status = verdict(frame);
    check_says(status, Code::kInternal, {"protocol error: "});
    for (const auto word : corruption.words) check_says(status, Code::kInternal, {word});
  }
}

TEST_CASE("a message's total cannot overflow") {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const std::vector<SegmentInfo> segments = {{kHalf, SegmentKind::kPush, {}},
                                             {kHalf, SegmentKind::kPush, {}},
                                             {8, SegmentKind::kPush, {}}};
  Limits limits = kLimits;
  limits.max_message_bytes = UINT64_MAX;
  const Bytes frame = message_frame(0, 1, segments, {}, {});
  check_says(verdict(frame, limits), Code::kInternal,
             {"segment 1", "length is 9223372036854775808"});
  check_says(check_message(segments, 0, limits), Code::kResourceExhausted,
             {"larger than the limit"});
}

TEST_CASE("limits are those of the caller") {
  Limits limits;
  limits.max_segments = 4;
  check_says(verdict(sample_message(), limits), Code::kInternal,
             {"segment_count is 5", "limit of 4"});
  check_says(check_message(one_of_each(), 2, limits), Code::kInvalidArgument, {"5 segments"});
  limits = {};
  limits.max_message_bytes = 34;
  check_says(verdict(sample_message(), limits), Code::kInternal, {"segment 4", "limit of 34"});
  limits.max_message_bytes = 35;
  CHECK(verdict(sample_message(), limits).ok());
  limits = {};
  limits.max_header_bytes = 1;
  check_says(verdict(sample_message(), limits), Code::kInternal, {"header_length is 2"});
  check_says(check_message(one_of_each(), 2, limits), Code::kResourceExhausted, {"header"});
  limits = {};
  limits.max_chunk_bytes = 6;
  check_says(verdict(sample_rts(), limits), Code::kInternal, {"RTS", "length is 7", "limit of 6"});
  limits.max_chunk_bytes = 7;
  check_says(verdict(sample_swap(), limits), Code::kInternal,
             {"OPERATION", "length is 8", "limit of 7"});
  check_says(verdict(outcome_frame(9, Code::kOk, Bytes(8)), limits), Code::kInternal,
             {"OUTCOME", "body_length is 24", "limit of 23"});
}

TEST_CASE("every limit itself is within the limit") {
  Limits limits;
  limits.max_message_bytes = 35;
  limits.max_header_bytes = 2;
  limits.max_segments = 5;
  limits.max_frame_body = static_cast<uint32_t>(body_of(sample_message()).size());
  limits.max_chunk_bytes = 7;
  CHECK(verdict(sample_message(), limits).ok());
  CHECK(check_message(one_of_each(), 2, limits).ok());

  const std::vector<SegmentInfo> largest = {
      {kLimits.max_frame_body, SegmentKind::kEager, {}},
      {8, SegmentKind::kMap, {1, 1, UINT64_MAX - 8, 1}},
  };
  CHECK(verdict(message_frame(0, 1, largest, {}, {})).ok());

  limits = {};
  limits.max_segments = 9;  // EAGER has 3 to 8, and DATA and RTS get the last one
  CHECK(verdict(sample_eager(), limits).ok());
  limits.max_segments = 4;
  limits.max_chunk_bytes = 7;
  limits.max_message_bytes = 4100;
  CHECK(verdict(sample_data(), limits).ok());
  CHECK(verdict(sample_rts(), limits).ok());
  limits.max_message_bytes = 15;
  CHECK(verdict(sample_rts(), limits).ok());
  limits.max_message_bytes = 14;
  check_says(verdict(sample_rts(), limits), Code::kInternal, {"segment_offset is 8"});

  Bytes rts = sample_rts();
  poke(rts, kFrameHeaderSize + 8, UINT64_MAX - 7);
  CHECK(verdict(rts).ok());

  Bytes eager = sample_eager();
  poke(eager, 0, kLimits.max_frame_body);
  CHECK(decode_frame_header(header_of(eager), kLimits).ok());
  Bytes data = sample_data();
  poke(data, 0, kLimits.max_chunk_bytes + 8);
  CHECK(decode_frame_header(header_of(data), kLimits).ok());
}

TEST_CASE("random bytes are refused or decode to something within the limits") {
  Random random(3);
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    Bytes bytes = random.bytes(kFrameHeaderSize);
    // Mostly plausible: else almost nothing gets past the first checks.
    for (const size_t offset : {3, 5, 6, 7, 24, 25, 26, 27, 30, 31}) {
      if (random.chance(95)) bytes[offset] = std::byte{0};
    }
    bytes[4] = static_cast<std::byte>(random.up_to(13));
    const auto header = decode_frame_header(header_of(bytes), kLimits);
    if (!header.ok()) continue;
    ++accepted;
    CHECK(header->body_length <= kLimits.max_chunk_bytes + kOperationPrefixSize);
  }
  CHECK(accepted > 1000);
}

}  // namespace
}  // namespace tw::wire
