// SPDX-License-Identifier: Apache-2.0
// The layout of frames, shared by their decoders and encoders only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "wire/bytes.h"
#include "wire/frame.h"

namespace tw::wire {

// "protocol error: <type> frame: <field> is <value>, <why>". Cold on purpose: the text is made only
// when a peer misbehaves.
[[gnu::cold, gnu::noinline]] Status bad(FrameType type, std::string_view field, uint64_t value,
                                        std::initializer_list<Piece> why);
// The receiver read as many bytes as the header announced; anything else is its own mistake.
Status check_size(const FrameHeader& header, FrameType type, size_t size);

struct SegmentEntry {
  uint64_t length;
  uint32_t kind;
  uint32_t reserved;  // zero
};

static_assert(sizeof(FrameHeader) == kFrameHeaderSize && alignof(FrameHeader) == 8);
static_assert(offsetof(FrameHeader, body_length) == 0);
static_assert(offsetof(FrameHeader, type) == 4);
static_assert(offsetof(FrameHeader, flags) == 5);
static_assert(offsetof(FrameHeader, segment_count) == 6);
static_assert(offsetof(FrameHeader, stream) == 8);
static_assert(offsetof(FrameHeader, message) == 16);
static_assert(offsetof(FrameHeader, header_length) == 24);
static_assert(offsetof(FrameHeader, first_segment) == 28);

static_assert(sizeof(SegmentEntry) == kSegmentEntrySize && alignof(SegmentEntry) == 8);
static_assert(offsetof(SegmentEntry, length) == 0);
static_assert(offsetof(SegmentEntry, kind) == 8);
static_assert(offsetof(SegmentEntry, reserved) == 12);

static_assert(sizeof(Descriptor) == kDescriptorSize && alignof(Descriptor) == 8);
static_assert(offsetof(Descriptor, slab) == 0);
static_assert(offsetof(Descriptor, generation) == 4);
static_assert(offsetof(Descriptor, offset) == 8);
static_assert(offsetof(Descriptor, lease) == 16);

static_assert(sizeof(ReadOffer) == kRtsBodySize && alignof(ReadOffer) == 8);
static_assert(offsetof(ReadOffer, slab) == 0);
static_assert(offsetof(ReadOffer, generation) == 4);
static_assert(offsetof(ReadOffer, offset) == 8);
static_assert(offsetof(ReadOffer, length) == 16);
static_assert(offsetof(ReadOffer, segment_offset) == 24);
static_assert(offsetof(ReadOffer, rendezvous) == 32);

}  // namespace tw::wire
