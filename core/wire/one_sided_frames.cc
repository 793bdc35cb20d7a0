// SPDX-License-Identifier: Apache-2.0
#include "wire/one_sided_frames.h"

#include <cassert>

#include "wire/frame_layout.h"

namespace tw::wire {
namespace {

static_assert(sizeof(Region) == kRegionBodySize && alignof(Region) == 8);
static_assert(offsetof(Region, id) == 0);
static_assert(offsetof(Region, length) == 8);
static_assert(offsetof(Region, address) == 16);
static_assert(offsetof(Region, key) == 24);
static_assert(offsetof(Region, rights) == 28);

static_assert(sizeof(OperationFrame) == kOperationPrefixSize && alignof(OperationFrame) == 8);
static_assert(offsetof(OperationFrame, id) == 0);
static_assert(offsetof(OperationFrame, region) == 8);
static_assert(offsetof(OperationFrame, offset) == 16);
static_assert(offsetof(OperationFrame, length) == 24);
static_assert(offsetof(OperationFrame, operand) == 32);
static_assert(offsetof(OperationFrame, expected) == 40);
static_assert(offsetof(OperationFrame, kind) == 48);
static_assert(offsetof(OperationFrame, immediate) == 52);

struct OutcomeLayout {
  uint64_t id;
  uint32_t code;
  uint32_t reserved;  // zero
};
static_assert(sizeof(OutcomeLayout) == kOutcomePrefixSize && alignof(OutcomeLayout) == 8);
static_assert(offsetof(OutcomeLayout, id) == 0);
static_assert(offsetof(OutcomeLayout, code) == 8);
static_assert(offsetof(OutcomeLayout, reserved) == 12);

}  // namespace

Result<Region> decode_region_body(const FrameHeader& header, std::span<const std::byte> body) {
  if (Status s = check_size(header, FrameType::kRegion, body.size()); !s.ok()) return s;
  const auto region = load<Region>(body.data());
  if (region.length == 0) return bad(header.type, "length", 0, {"must be at least 1"});
  if (region.address > UINT64_MAX - region.length)
    return bad(header.type, "address", region.address, {"and overflows with its length"});
  if ((region.rights & ~kRegionRights) != 0)
    return bad(header.type, "rights", region.rights, {"with bits that this version does not know"});
  return region;
}

Result<uint64_t> decode_region_gone_body(const FrameHeader& header,
                                         std::span<const std::byte> body) {
  if (Status s = check_size(header, FrameType::kRegionGone, body.size()); !s.ok()) return s;
  return load<uint64_t>(body.data());
}

Result<OperationFrame> decode_operation_prefix(
    const FrameHeader& header, std::span<const std::byte, kOperationPrefixSize> prefix,
    const Limits& limits) {
  if (Status s = check_size(header, FrameType::kOperation, header.body_length); !s.ok()) return s;
  const auto operation = load<OperationFrame>(prefix.data());
  const OperationKind kind = operation.kind;
  if (kind > OperationKind::kCompareSwap)
    return bad(header.type, "kind", static_cast<uint32_t>(kind),
               {"which this version does not know"});
  if (operation.id == 0) return bad(header.type, "id", 0, {"numbers start at 1"});
  const uint64_t payload = header.body_length - kOperationPrefixSize;
  if (payload != 0 && !writes(kind))
    return bad(header.type, "body_length", header.body_length,
               {"but only writes have bytes after the first ", kOperationPrefixSize});
  if (writes(kind) && operation.length != payload)
    return bad(header.type, "length", operation.length, {"but ", payload, " bytes follow"});
  if (updates(kind) && operation.length != sizeof(uint64_t))
    return bad(header.type, "length", operation.length, {"must be 8 for the atomics"});
  if (operation.length > limits.max_chunk_bytes)
    return bad(header.type, "length", operation.length,
               {"above the limit of ", limits.max_chunk_bytes});
  if (operation.operand != 0 && !updates(kind))
    return bad(header.type, "operand", operation.operand, {"must be 0 in this kind"});
  if (operation.expected != 0 && kind != OperationKind::kCompareSwap)
    return bad(header.type, "expected", operation.expected, {"must be 0 in this kind"});
  if (operation.immediate != 0 && kind != OperationKind::kWriteImmediate)
    return bad(header.type, "immediate", operation.immediate, {"must be 0 in this kind"});
  return operation;
}

Result<OutcomeFrame> decode_outcome_prefix(const FrameHeader& header,
                                           std::span<const std::byte, kOutcomePrefixSize> prefix,
                                           const Limits& limits) {
  if (Status s = check_size(header, FrameType::kOutcome, header.body_length); !s.ok()) return s;
  const auto layout = load<OutcomeLayout>(prefix.data());
  if (layout.code > kHighestCode)
    return bad(header.type, "code", layout.code, {"no gRPC status code"});
  if (layout.reserved != 0) return bad(header.type, "reserved", layout.reserved, {"must be 0"});
  const uint64_t limit = layout.code == 0 ? limits.max_chunk_bytes : kMaxOutcomeDetails;
  const uint64_t length = header.body_length - kOutcomePrefixSize;
  if (length > limit)
    return bad(header.type, "body_length", header.body_length,
               {"above the limit of ", kOutcomePrefixSize + limit, " with this code"});
  return OutcomeFrame{layout.id, static_cast<Code>(layout.code), static_cast<uint32_t>(length)};
}

std::byte* encode_region(std::byte* out, const Region& region) {
  assert(region.length != 0);
  FrameHeader header;
  header.body_length = kRegionBodySize;
  header.type = FrameType::kRegion;
  return store(store(out, header), region);
}

std::byte* encode_region_gone(std::byte* out, uint64_t region) {
  FrameHeader header;
  header.body_length = kRegionGoneBodySize;
  header.type = FrameType::kRegionGone;
  return store(store(out, header), region);
}

std::byte* encode_operation_prefix(std::byte* out, const OperationFrame& operation) {
  assert(operation.id != 0 && operation.length <= UINT32_MAX - kOperationPrefixSize);
  FrameHeader header;
  header.body_length =
      static_cast<uint32_t>(kOperationPrefixSize + (writes(operation.kind) ? operation.length : 0));
  header.type = FrameType::kOperation;
  return store(store(out, header), operation);
}

std::byte* encode_outcome_prefix(std::byte* out, const OutcomeFrame& outcome) {
  assert(outcome.length <= UINT32_MAX - kOutcomePrefixSize);
  FrameHeader header;
  header.body_length = static_cast<uint32_t>(kOutcomePrefixSize + outcome.length);
  header.type = FrameType::kOutcome;
  return store(store(out, header),
               OutcomeLayout{outcome.id, static_cast<uint32_t>(outcome.code), 0});
}

}  // namespace tw::wire
