// SPDX-License-Identifier: Apache-2.0
// Frames: what travels on a link once its handshake is over. Every frame is a FrameHeader and
// body_length bytes; docs/wire-format.md has the byte tables.
//
// Decoders take bytes that have already been copied into memory which the peer cannot reach, and
// answer INTERNAL with a sentence that names the field when the peer broke the protocol. They judge
// one frame at a time. Whether it fits what came before (message numbers that rise, a segment that
// was announced, ids that exist, memory inside a slab) is for the message layer, which has that
// knowledge. Encoders trust their caller, never allocate, and return the byte after what they
// wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace tw::wire {

enum class FrameType : uint8_t {
  kMessage = 1,  // announces a message: its segments, its header, its inline bytes
  kEager = 2,    // bytes of consecutive EAGER segments
  kData = 3,     // one chunk of a PUSH segment
  kRts = 4,      // one chunk of a READ segment is ready to be read
  kFin = 5,      // leases and rendezvous that the receiver has finished with
  kCredit = 6,   // more bytes granted to a stream
  kAbort = 7,    // the sender gives up on a message that it began
  kGoAway = 8,   // the link will be closed: no new streams
  // With feature kOneSided only; their bodies are in wire/one_sided_frames.h.
  kRegion = 9,       // memory that the peer may access one-sidedly
  kRegionGone = 10,  // ... and may not any more
  kOperation = 11,   // a one-sided operation, where no device does it
  kOutcome = 12,     // how it has ended
  // Ends a lease like FIN: the receiver has no means to map the slab, and wants copies from there.
  kUnmappable = 13,
};

enum class SegmentKind : uint32_t {
  kInline = 0,  // in the MESSAGE frame itself
  kEager = 1,   // in EAGER frames
  kPush = 2,    // in DATA frames
  kRead = 3,    // the receiver reads it, chunk by chunk, as RTS frames say
  kMap = 4,     // lies in the sender's arena; the receiver maps it, FIN ends the lease
  kReturn = 5,  // lies in the receiver's arena, on a lease that the sender has of it
};

// Whether a Descriptor says where such a segment lies.
inline constexpr bool described(SegmentKind kind) {
  return kind == SegmentKind::kMap || kind == SegmentKind::kReturn;
}

// CREDIT to it changes nothing: streams have numbers from 1.
inline constexpr uint64_t kNoStream = 0;
// Of the streams of messages, those with this bit carry tagged messages; the tag is the rest. Each
// of the others is a call's.
inline constexpr uint64_t kTaggedStreams = uint64_t{1} << 63;
// Of the streams of calls, those with this bit were begun by the end that accepted the connection.
inline constexpr uint64_t kAcceptorStreams = uint64_t{1} << 62;

struct FrameHeader {
  uint32_t body_length = 0;
  FrameType type = FrameType::kMessage;
  uint8_t flags = 0;           // none defined: zero
  uint16_t segment_count = 0;  // MESSAGE, EAGER
  uint64_t stream = 0;         // zero where a frame concerns the whole link
  uint64_t message = 0;        // from 1, counted by each sender; zero where no message is meant
  uint32_t header_length = 0;  // MESSAGE
  uint32_t first_segment = 0;  // EAGER: the first of segment_count; DATA, RTS: the one it is about

  bool operator==(const FrameHeader&) const = default;
};

// Where a MAP segment lies in the sender's arena, and the lease to name in FIN; or where a RETURN
// segment lies in the receiver's, and the lease on which the sender has it.
struct Descriptor {
  uint32_t slab = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;
  uint64_t lease = 0;

  bool operator==(const Descriptor&) const = default;
};

// One segment of a MESSAGE. On the wire: SegmentEntry, and a Descriptor when the kind is MAP or
// RETURN.
struct SegmentInfo {
  uint64_t length = 0;
  SegmentKind kind = SegmentKind::kInline;
  Descriptor map;

  bool operator==(const SegmentInfo&) const = default;
};

// The body of an RTS frame: `length` bytes, which belong at `segment_offset` of the segment, may be
// read in the sender's arena until the receiver names `rendezvous` in a FIN.
struct ReadOffer {
  uint32_t slab = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;  // in the slab
  uint64_t length = 0;
  uint64_t segment_offset = 0;
  uint64_t rendezvous = 0;

  bool operator==(const ReadOffer&) const = default;
};

inline constexpr size_t kFrameHeaderSize = 32;
inline constexpr size_t kSegmentEntrySize = 16;
inline constexpr size_t kDescriptorSize = 24;
inline constexpr size_t kDataPrefixSize = 8;  // the offset at the start of a DATA body
inline constexpr size_t kRtsBodySize = 40;
inline constexpr size_t kCreditBodySize = 8;
inline constexpr size_t kUnmappableBodySize = 8;
inline constexpr size_t kMaxFinIds = 1024;
inline constexpr size_t kMaxGoAwayReason = 1024;
// Messages that a sender has announced and whose chunks (DATA, RTS) it has not all sent. A receiver
// takes twice as many.
inline constexpr size_t kMaxOpenMessages = 1024;
// Leases of one end's memory that its peer holds on a link: MAP segments without a FIN.
inline constexpr size_t kMaxLeases = 4096;
// Bytes of a RETURN segment. Less is copied: a view costs its receiver more than such bytes do, and
// nothing but the allowance of its stream bounds how many it may have.
inline constexpr size_t kLeastReturned = 4096;

// What breaks the link when a peer exceeds it. A smaller limit on what one call may receive is not
// a protocol error and belongs to the layers above.
struct Limits {
  uint64_t max_message_bytes = uint64_t{16} << 30;  // all segments of a message
  uint32_t max_header_bytes = 1 << 20;
  uint32_t max_segments = 65'535;
  uint32_t max_frame_body = 4 << 20;    // MESSAGE and EAGER
  uint32_t max_chunk_bytes = 64 << 20;  // DATA and RTS, the payload of OPERATION and OUTCOME
};

// Checks all that the header alone can show, so that body_length bytes may be allocated for it.
Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderSize> bytes,
                                        const Limits& limits);

// ---- bodies ----
// `header` is always one that decode_frame_header has accepted under the same limits.

struct MessageHead {
  std::span<const std::byte> header;        // opaque here; points into the body
  std::span<const std::byte> inline_bytes;  // of all INLINE segments, back to back; into the body
  uint64_t total_bytes = 0;                 // of all segments
};

// Fills the first header.segment_count elements of `segments`, which must have room for them.
Result<MessageHead> decode_message_body(const FrameHeader& header, std::span<const std::byte> body,
                                        const Limits& limits, std::span<SegmentInfo> segments);

struct DataChunk {
  uint32_t segment = 0;
  uint64_t offset = 0;  // in the segment
  uint32_t length = 0;  // the bytes that follow the prefix
};

// Needs the first 8 bytes of the body only, so that the rest can be received in place.
Result<DataChunk> decode_data_prefix(const FrameHeader& header,
                                     std::span<const std::byte, kDataPrefixSize> prefix,
                                     const Limits& limits);

Result<ReadOffer> decode_rts_body(const FrameHeader& header, std::span<const std::byte> body,
                                  const Limits& limits);

// A view of the ids in a FIN body.
class IdList {
 public:
  IdList() = default;
  explicit IdList(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t size() const { return bytes_.size() / sizeof(uint64_t); }
  uint64_t operator[](size_t index) const;

 private:
  std::span<const std::byte> bytes_;
};

Result<IdList> decode_fin_body(const FrameHeader& header, std::span<const std::byte> body);

// The bytes granted, never zero.
Result<uint64_t> decode_credit_body(const FrameHeader& header, std::span<const std::byte> body);

struct GoAway {
  Code code = Code::kOk;
  std::string_view reason;  // UTF-8; points into the body
};

Result<GoAway> decode_goaway_body(const FrameHeader& header, std::span<const std::byte> body);

// The lease.
Result<uint64_t> decode_unmappable_body(const FrameHeader& header, std::span<const std::byte> body);

// ---- encoders ----

// Bytes of a MESSAGE frame before the message header: what encode_message_prefix writes.
size_t message_prefix_size(std::span<const SegmentInfo> segments);

// Does this message fit `limits`? INVALID_ARGUMENT or RESOURCE_EXHAUSTED for the local sender.
Status check_message(std::span<const SegmentInfo> segments, size_t header_length,
                     const Limits& limits);

// FrameHeader, entries and descriptors. The caller appends header_length bytes of header and then
// the bytes of the INLINE segments.
std::byte* encode_message_prefix(std::byte* out, uint64_t stream, uint64_t message,
                                 std::span<const SegmentInfo> segments, size_t header_length);
// FrameHeader only; the caller appends body_length > 0 bytes: of empty segments the announcement
// has said all there is to say.
std::byte* encode_eager_prefix(std::byte* out, uint64_t stream, uint64_t message,
                               uint32_t first_segment, uint16_t segment_count,
                               uint32_t body_length);
// FrameHeader and offset; the caller appends `length` > 0 bytes.
std::byte* encode_data_prefix(std::byte* out, uint64_t stream, uint64_t message, uint32_t segment,
                              uint64_t offset, uint32_t length);

// Gives a run of whole MESSAGE and EAGER frames, all of one message, another number.
void renumber(std::span<std::byte> frames, uint64_t message);

// Whole frames.
std::byte* encode_rts(std::byte* out, uint64_t stream, uint64_t message, uint32_t segment,
                      const ReadOffer& offer);
std::byte* encode_fin(std::byte* out, std::span<const uint64_t> ids);  // 1..kMaxFinIds
std::byte* encode_credit(std::byte* out, uint64_t stream, uint64_t bytes);
std::byte* encode_abort(std::byte* out, uint64_t stream, uint64_t message);
std::byte* encode_unmappable(std::byte* out, uint64_t lease);
// Cuts the reason to kMaxGoAwayReason bytes, never inside a character.
std::byte* encode_goaway(std::byte* out, Code code, std::string_view reason);

inline constexpr size_t kEagerPrefixSize = kFrameHeaderSize;
inline constexpr size_t kDataFramePrefixSize = kFrameHeaderSize + kDataPrefixSize;
inline constexpr size_t kRtsFrameSize = kFrameHeaderSize + kRtsBodySize;
inline constexpr size_t kCreditFrameSize = kFrameHeaderSize + kCreditBodySize;
inline constexpr size_t kAbortFrameSize = kFrameHeaderSize;
inline constexpr size_t kUnmappableFrameSize = kFrameHeaderSize + kUnmappableBodySize;
inline constexpr size_t kMaxGoAwayFrameSize =
    kFrameHeaderSize + sizeof(uint32_t) + kMaxGoAwayReason;
inline constexpr size_t fin_frame_size(size_t ids) {
  return kFrameHeaderSize + ids * sizeof(uint64_t);
}

}  // namespace tw::wire
