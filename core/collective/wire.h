// SPDX-License-Identifier: Apache-2.0
// What each message of an operation begins with: what its sender is at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/algorithm.h"
#include "collective/collective_call.h"

namespace tw::collective {

struct StepHeader {
  uint64_t sequence = 0;  // which operation of the group it is
  uint64_t total = 0;     // bytes that the sender has for the receiver, in all such messages
  CollectiveCall call;
  Algorithm algorithm = Algorithm::kNone;

  bool operator==(const StepHeader&) const = default;
};

//  offset  size
//       0     8  sequence
//       8     8  total
//      16     1  kind of operation
//      17     1  type of elements
//      18     1  reduction
//      19     1  algorithm
//      20     4  root
//      24     8  count
inline constexpr size_t kStepHeaderSize = 32;

std::array<std::byte, kStepHeaderSize> encode_step(const StepHeader& header);
// INTERNAL: another size, or values that name nothing.
Result<StepHeader> decode_step(std::span<const std::byte> bytes);

// What ranks that join tell each other.
struct Neighbours {
  static constexpr uint8_t kMaps = 1, kReads = 2;

  Algorithm forced = Algorithm::kNone;  // what it was told to do
  uint64_t tuning = 0;                  // the digest of its table
  std::vector<uint8_t> ranks;           // whether it maps the stage, and reads the memory, of each

  bool operator==(const Neighbours&) const = default;
};

//  offset  size
//       0     1  algorithm
//       1     8  digest
//       9     1  for each rank: kMaps, kReads
std::vector<std::byte> encode_neighbours(const Neighbours& neighbours);
// INTERNAL: of another number of ranks, or values that name nothing.
Result<Neighbours> decode_neighbours(std::span<const std::byte> bytes, size_t ranks);

}  // namespace tw::collective
