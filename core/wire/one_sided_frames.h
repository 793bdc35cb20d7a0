// SPDX-License-Identifier: Apache-2.0
// The bodies of the frames by which processes let each other at their memory: REGION and
// REGION_GONE announce it, OPERATION asks for an access that no device does, OUTCOME answers.
#pragma once

#include "wire/frame.h"

namespace tw::wire {

// What the peer may do in a region; a set of bits.
inline constexpr uint32_t kRegionRights = 7;  // 1 read, 2 write, 4 update (the two atomics)

// Keys of regions that no device serves. The memory was handed over (feature kMapped), or it lies
// in a slab of the sender's, and its door was handed over (feature kMappedBlocks).
inline constexpr uint32_t kHandedOver = 1;
inline constexpr uint32_t kInArena = 2;
// It was to be handed over, and could not be.
inline constexpr uint32_t kNotHandedOver = 3;

struct Region {
  uint64_t id = 0;
  uint64_t length = 0;
  // For the device that serves it. Of memory that was handed over, or of a slab: where in it the
  // region begins. Else zero.
  uint64_t address = 0;
  uint32_t key = 0;  // for the device; kHandedOver; kInArena; kNotHandedOver; or zero
  uint32_t rights = 0;

  bool operator==(const Region&) const = default;
};

enum class OperationKind : uint32_t {
  kRead = 0,
  kWrite = 1,
  kWriteImmediate = 2,
  kFetchAdd = 3,
  kCompareSwap = 4,
};

constexpr bool writes(OperationKind kind) {
  return kind == OperationKind::kWrite || kind == OperationKind::kWriteImmediate;
}
constexpr bool updates(OperationKind kind) {
  return kind == OperationKind::kFetchAdd || kind == OperationKind::kCompareSwap;
}

struct OperationFrame {
  uint64_t id = 0;
  uint64_t region = 0;
  uint64_t offset = 0;    // in the region
  uint64_t length = 0;    // of what is read or written; 8 for the atomics
  uint64_t operand = 0;   // FETCH_ADD: what to add; COMPARE_SWAP: what to swap in
  uint64_t expected = 0;  // COMPARE_SWAP
  OperationKind kind = OperationKind::kRead;
  uint32_t immediate = 0;  // WRITE_IMMEDIATE

  bool operator==(const OperationFrame&) const = default;
};

// Followed by what was read, by the old value of an atomic, or by the details of a failure.
struct OutcomeFrame {
  uint64_t id = 0;
  Code code = Code::kOk;
  uint32_t length = 0;  // bytes that follow

  bool operator==(const OutcomeFrame&) const = default;
};

inline constexpr size_t kRegionBodySize = 32;
inline constexpr size_t kRegionGoneBodySize = 8;
inline constexpr size_t kOperationPrefixSize = 56;
inline constexpr size_t kOutcomePrefixSize = 16;
inline constexpr size_t kMaxOutcomeDetails = 1024;
// OPERATIONs of one end without an OUTCOME.
inline constexpr size_t kMaxOperations = 1024;
// REGIONs of one end without a REGION_GONE.
inline constexpr size_t kMaxRegions = 65'536;

// ---- decoders: `header` is one that decode_frame_header has accepted under the same limits ----

Result<Region> decode_region_body(const FrameHeader& header, std::span<const std::byte> body);
// The region's id.
Result<uint64_t> decode_region_gone_body(const FrameHeader& header,
                                         std::span<const std::byte> body);
// These two need the beginning of the body only, so that the rest can be received in place.
Result<OperationFrame> decode_operation_prefix(
    const FrameHeader& header, std::span<const std::byte, kOperationPrefixSize> prefix,
    const Limits& limits);
Result<OutcomeFrame> decode_outcome_prefix(const FrameHeader& header,
                                           std::span<const std::byte, kOutcomePrefixSize> prefix,
                                           const Limits& limits);

// ---- encoders ----

std::byte* encode_region(std::byte* out, const Region& region);
std::byte* encode_region_gone(std::byte* out, uint64_t region);
// FrameHeader and prefix; the caller appends `length` bytes when the operation writes.
std::byte* encode_operation_prefix(std::byte* out, const OperationFrame& operation);
// FrameHeader and prefix; the caller appends `outcome.length` bytes.
std::byte* encode_outcome_prefix(std::byte* out, const OutcomeFrame& outcome);

inline constexpr size_t kRegionFrameSize = kFrameHeaderSize + kRegionBodySize;
inline constexpr size_t kRegionGoneFrameSize = kFrameHeaderSize + kRegionGoneBodySize;
inline constexpr size_t kOperationFramePrefixSize = kFrameHeaderSize + kOperationPrefixSize;
inline constexpr size_t kOutcomeFramePrefixSize = kFrameHeaderSize + kOutcomePrefixSize;

}  // namespace tw::wire
