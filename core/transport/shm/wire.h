// SPDX-License-Identifier: Apache-2.0
// Fixed-size messages on the unix socket of a shared-memory link, each with descriptors beside it
// (SCM_RIGHTS).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace tw::wire {

enum class ShmFrameType : uint32_t {
  kRings = 1,     // from the client, once: ring memory; size = ring capacity
  kSlab = 2,      // a slab can be mapped from now on: its read-only descriptor; size = its bytes
  kSlabGone = 3,  // the sender has dropped a slab; no descriptor
  kBell = 4,      // look at the rings; no descriptor
  // Before the rings, from both ends: a pidfd of the sender; size = 1, or 0 where it has none.
  kProcess = 5,
  // Memory that the receiver may access: descriptors of its file and of its door (see
  // memory/mapped_memory.h); size = the bytes of the file. slab and generation are the lower and
  // the upper half of the region's number.
  kRegion = 6,
  // Memory of a slab that the receiver may read: the descriptor of its door. slab and generation
  // are those of a slab that was handed over before; size = the region's number.
  kBlock = 7,
};

struct ShmFrame {
  std::array<char, 8> magic{'T', 'W', 'S', 'H', 'M', '0', '0', '1'};
  ShmFrameType type = ShmFrameType::kRings;
  uint32_t slab = 0;
  uint32_t generation = 0;
  uint32_t zero = 0;
  uint64_t size = 0;

  bool operator==(const ShmFrame&) const = default;
};

inline constexpr size_t kShmFrameSize = 32;
inline constexpr size_t kMaxShmDescriptors = 2;  // that come with one frame

// How many descriptors come with it.
size_t descriptors_of(const ShmFrame& frame);

void encode(std::span<std::byte, kShmFrameSize> out, const ShmFrame& frame);
// INTERNAL, "protocol error: ...", names the field.
Result<ShmFrame> decode_shm_frame(std::span<const std::byte, kShmFrameSize> bytes);

}  // namespace tw::wire
