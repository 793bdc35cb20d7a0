// SPDX-License-Identifier: Apache-2.0
// What the message machines count.
#pragma once

#include "base/declared.h"

namespace tw {

// Counted under the send lock.
struct SendCounters {
  uint64_t messages = 0, bytes = 0;
  uint64_t inline_segments = 0, eager_frames = 0;
  uint64_t pushed_segments = 0, pushed_chunks = 0;
  uint64_t mapped_segments = 0, returned_segments = 0, read_segments = 0, ready_to_sends = 0;
  uint64_t unshared_segments = 0, crowded_segments = 0, unmappable = 0;
};

// Counted by whoever drives the link.
struct ReceiveCounters {
  LiveCount messages, bytes;
  LiveCount inline_segments, eager_segments;
  LiveCount pushed_segments, pushed_chunks;
  LiveCount mapped_segments, returned_segments;
  LiveCount read_segments, reads, read_bytes;
  LiveCount arena_buffers, pool_buffers;
  LiveCount refused;
};

namespace metric {

inline constexpr Metric kMessages{"link_messages", "messages", Metric::Kind::kCounter,
                                  "Messages, by bytes of payload (at most)."};
inline constexpr Metric kPayload{"link_payload_bytes", "bytes", Metric::Kind::kCounter,
                                 "Payload, by bytes in its message (at most)."};
inline constexpr Metric kSegments{
    "link_segments", "segments", Metric::Kind::kCounter,
    "Segments, by how they travelled: inside a frame with others, alone at once, in chunks that "
    "were pushed, as a descriptor of shared memory, as one of the receiver's own that this end had "
    "on lease, or read by the receiver."};
inline constexpr Metric kChunks{"link_chunks", "chunks", Metric::Kind::kCounter,
                                "Pieces of segments that were too large for one send."};
inline constexpr Metric kReads{
    "link_reads", "chunks", Metric::Kind::kCounter,
    "Chunks that were offered to the peer, and chunks that this end has read."};
inline constexpr Metric kReadBuffers{"link_read_buffers", "segments", Metric::Kind::kCounter,
                                     "Segments that were read, by where they landed."};
inline constexpr Metric kUnmappable{
    "link_unmappable_segments", "segments", Metric::Kind::kCounter,
    "Segments in shared memory whose receiver had no means to map them; it gets copies then."};

inline constexpr Declared::Label kSent{"direction", "sent"}, kReceived{"direction", "received"};

}  // namespace metric

inline constexpr Counter<SendCounters> kSendCounters[] = {
    {&SendCounters::messages, {"messages_sent", metric::kMessages, {metric::kSent}, true}},
    {&SendCounters::bytes, {"bytes_sent", metric::kPayload, {metric::kSent}, true}},
    {&SendCounters::inline_segments,
     {"segments_sent_inline", metric::kSegments, {metric::kSent, {"protocol", "inline"}}}},
    {&SendCounters::eager_frames,
     {"frames_sent_eager",
      {"link_eager_frames", "frames", Metric::Kind::kCounter,
       "Frames that were copied and sent at once."}}},
    {&SendCounters::pushed_segments,
     {"segments_sent_pushed", metric::kSegments, {metric::kSent, {"protocol", "pushed"}}}},
    {&SendCounters::pushed_chunks, {"chunks_sent", metric::kChunks, {metric::kSent}}},
    {&SendCounters::mapped_segments,
     {"segments_sent_mapped", metric::kSegments, {metric::kSent, {"protocol", "mapped"}}}},
    {&SendCounters::returned_segments,
     {"segments_sent_returned", metric::kSegments, {metric::kSent, {"protocol", "returned"}}}},
    {&SendCounters::read_segments,
     {"segments_sent_read", metric::kSegments, {metric::kSent, {"protocol", "read"}}}},
    {&SendCounters::ready_to_sends, {"ready_to_sends", metric::kReads, {metric::kSent}}},
    {&SendCounters::unshared_segments,
     {"segments_sent_unshared",
      {"link_unshared_segments", "segments", Metric::Kind::kCounter,
       "Segments in the arena that were pushed, because their slab could not be shared."}}},
    {&SendCounters::crowded_segments,
     {"segments_sent_crowded",
      {"link_crowded_segments", "segments", Metric::Kind::kCounter,
       "Segments that were pushed, because the arena had no room or no lease for them."}}},
    {&SendCounters::unmappable, {"segments_sent_unmappable", metric::kUnmappable, {metric::kSent}}},
};
static_assert(complete(kSendCounters));

inline constexpr Counter<ReceiveCounters, LiveCount> kReceiveCounters[] = {
    {&ReceiveCounters::messages,
     {"messages_received", metric::kMessages, {metric::kReceived}, true}},
    {&ReceiveCounters::bytes, {"bytes_received", metric::kPayload, {metric::kReceived}, true}},
    {&ReceiveCounters::inline_segments,
     {"segments_received_inline", metric::kSegments, {metric::kReceived, {"protocol", "inline"}}}},
    {&ReceiveCounters::eager_segments,
     {"segments_received_eager", metric::kSegments, {metric::kReceived, {"protocol", "eager"}}}},
    {&ReceiveCounters::pushed_segments,
     {"segments_received_pushed", metric::kSegments, {metric::kReceived, {"protocol", "pushed"}}}},
    {&ReceiveCounters::pushed_chunks, {"chunks_received", metric::kChunks, {metric::kReceived}}},
    {&ReceiveCounters::mapped_segments,
     {"segments_received_mapped", metric::kSegments, {metric::kReceived, {"protocol", "mapped"}}}},
    {&ReceiveCounters::returned_segments,
     {"segments_received_returned",
      metric::kSegments,
      {metric::kReceived, {"protocol", "returned"}}}},
    {&ReceiveCounters::read_segments,
     {"segments_received_read", metric::kSegments, {metric::kReceived, {"protocol", "read"}}}},
    {&ReceiveCounters::reads, {"reads", metric::kReads, {metric::kReceived}}},
    {&ReceiveCounters::read_bytes,
     {"read_bytes",
      {"link_read_bytes", "bytes", Metric::Kind::kCounter,
       "Bytes that this end has read from the peer's memory."}}},
    {&ReceiveCounters::arena_buffers,
     {"read_buffers_arena", metric::kReadBuffers, {{"memory", "arena"}}}},
    {&ReceiveCounters::pool_buffers,
     {"read_buffers_pool", metric::kReadBuffers, {{"memory", "pool"}}}},
    {&ReceiveCounters::refused,
     {"messages_refused",
      {"link_refused_messages", "messages", Metric::Kind::kCounter,
       "Messages that were larger than this end accepts."}}},
};
static_assert(complete(kReceiveCounters));

}  // namespace tw
