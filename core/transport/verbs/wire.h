// SPDX-License-Identifier: Apache-2.0
// What the two ends of a verbs link tell each other: fixed-size frames on the tcp connection beside
// the queue pairs, and the transport's own SENDs.
//
//   client: VerbsOffer ->            <- server: VerbsOffer (or a refusal)
//   client: VerbsReady ->            once its queue pairs can receive
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace tw::wire {

// Most queue pairs of a link, over all its ports.
inline constexpr size_t kMaxPairs = 16;

// How packets of a queue pair are addressed.
enum class VerbsNetwork : uint8_t { kInfiniBand = 1, kRoceV1 = 2, kRoceV2 = 3 };

// One queue pair, as its peer has to know it.
struct VerbsPair {
  std::array<uint8_t, 16> gid{};
  uint32_t queue_pair = 0;    // number, 24 bits
  uint32_t first_packet = 0;  // sequence number of the first packet it sends, 24 bits
  uint16_t lid = 0;           // kInfiniBand
  VerbsNetwork network = VerbsNetwork::kRoceV2;
  uint8_t mtu = 1;        // 1 to 5: 128 bytes << mtu
  uint8_t reads_in = 1;   // reads and atomics of the peer that it serves at a time
  uint8_t reads_out = 1;  // ... that it has under way itself
  uint16_t partner = 0;   // in an answer: index of the client's one that it is joined with
  uint64_t bit_rate = 0;  // of the port, bits per second; 0: unknown

  bool operator==(const VerbsPair&) const = default;
};

struct VerbsOffer {
  std::array<char, 8> magic{'T', 'W', 'V', 'E', 'R', 'B', '0', '1'};
  uint32_t code = 0;           // of an answer: a gRPC status code; 0, or a refusal
  uint32_t pairs = 0;          // how many of the entries are filled; the others are zero
  uint32_t receive_depth = 0;  // buffers that lie ready for the peer's SENDs, on the first pair
  uint32_t buffer_bytes = 0;   // of each
  std::array<VerbsPair, kMaxPairs> pair{};

  bool operator==(const VerbsOffer&) const = default;
};

struct VerbsReady {
  std::array<char, 8> magic{'T', 'W', 'V', 'R', 'D', 'Y', '0', '1'};
  uint32_t code = 0;  // 0, or why the client gives up
  uint32_t zero = 0;

  bool operator==(const VerbsReady&) const = default;
};

inline constexpr size_t kVerbsOfferSize = 664;
inline constexpr size_t kVerbsReadySize = 16;
inline constexpr uint32_t kMaxVerbsDepth = 1 << 14;
inline constexpr uint32_t kMinVerbsBuffer = 512;
inline constexpr uint32_t kMaxVerbsBuffer = 4 << 20;

// Each answers INTERNAL, "protocol error: ...", that names the field.
Result<VerbsOffer> decode_verbs_offer(std::span<const std::byte, kVerbsOfferSize> bytes);
Result<VerbsReady> decode_verbs_ready(std::span<const std::byte, kVerbsReadySize> bytes);

void encode(std::span<std::byte, kVerbsOfferSize> out, const VerbsOffer& frame);
void encode(std::span<std::byte, kVerbsReadySize> out, const VerbsReady& frame);

// ---- SENDs ----

// The immediate value of every SEND.
struct SendNote {
  bool own = false;      // the bytes are the transport's own, not the pipe's
  uint32_t credits = 0;  // receive buffers that the sender has posted anew

  bool operator==(const SendNote&) const = default;
};
inline constexpr uint32_t kOwnSend = uint32_t{1} << 31;
constexpr uint32_t encode_note(const SendNote& note) {
  return (note.own ? kOwnSend : 0) | note.credits;
}
constexpr SendNote decode_note(uint32_t immediate) {
  return {(immediate & kOwnSend) != 0, immediate & ~kOwnSend};
}

enum class VerbsControlType : uint32_t {
  kSlab = 1,      // a slab can be read from now on
  kSlabGone = 2,  // the sender has dropped it; size and windows are zero
};

// An own SEND that is not empty.
struct VerbsControl {
  struct Window {
    uint64_t address = 0;  // of the slab's first byte, as the device knows it
    uint32_t key = 0;
    uint32_t zero = 0;

    bool operator==(const Window&) const = default;
  };

  VerbsControlType type = VerbsControlType::kSlab;
  uint32_t slab = 0;
  uint32_t generation = 0;
  uint32_t pairs = 0;  // how many windows are filled: those of the link; 0 for kSlabGone
  uint64_t size = 0;   // bytes of the slab
  std::array<Window, kMaxPairs> window{};

  bool operator==(const VerbsControl&) const = default;
};
inline constexpr size_t kVerbsNewsSize = 280;

// INTERNAL, "protocol error: ...", names the field.
Result<VerbsControl> decode_verbs_news(std::span<const std::byte> bytes);
void encode(std::span<std::byte, kVerbsNewsSize> out, const VerbsControl& news);

}  // namespace tw::wire
