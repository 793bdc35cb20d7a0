// SPDX-License-Identifier: Apache-2.0
// What ranks put into the store to meet; what each message of an operation begins with, which is
// what its sender is at; what ranks of a host read in each other's stages; and what they tell each
// other of arrays on devices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collective/algorithm.h"
#include "collective/collective_call.h"
#include "collective/peer_memory.h"
#include "device/driver.h"
#include "wire/welcome.h"

namespace tw::collective {

// Who a rank is, in the store. The nonce is fresh each time it joins: a store may still have what
// the ranks of an earlier attempt have left there.
struct Presence {
  wire::Hello hello;
  wire::Nonce nonce{};
  uint32_t size = 1;  // ranks of the group

  bool operator==(const Presence&) const = default;
};

//  offset  size
//       0    96  Hello
//      96    32  nonce
//     128     4  size
inline constexpr size_t kPresenceSize = wire::kHelloSize + sizeof(wire::Nonce) + sizeof(uint32_t);

std::array<std::byte, kPresenceSize> encode_presence(const Presence& presence);
// INVALID_ARGUMENT: another size, or no Hello.
Result<Presence> decode_presence(std::span<const std::byte> bytes);

// How another rank reaches the one that said it, in the store.
struct Answer {
  wire::Nonce to{};   // the nonce of the presence
  wire::Nonce key{};  // rank 0's: what only the group knows
  uint32_t size = 1;  // ranks of the group, as the one that answers has it
  wire::Welcome welcome;
};

//  offset  size
//       0    32  nonce
//      32    32  key
//      64     4  size
//      68     -  Welcome
std::vector<std::byte> encode_answer(const Answer& answer);
// The addresses point into the bytes. INVALID_ARGUMENT, FAILED_PRECONDITION: see decode_welcome.
Result<Answer> decode_answer(std::span<const std::byte> bytes);

//  offset  size
//       0     1  kind of operation
//       1     1  type of elements
//       2     1  reduction
//       3     1  0
//       4     4  root
//       8     8  count
inline constexpr size_t kCallSize = 16;
using CallBytes = std::array<std::byte, kCallSize>;

CallBytes encode_call(const CollectiveCall& call);
// INTERNAL: another size, or values that name nothing.
Result<CollectiveCall> decode_call(std::span<const std::byte> bytes);

// What is known of a rank, the worst last. One that has failed has ended the group.
enum class Fate : uint8_t { kThere, kFailed, kLeft, kLost };

// What ranks tell each other of one. kThere: its sender asks who has left.
struct Word {
  int rank = 0;
  Fate fate = Fate::kThere;
  std::string_view why;

  bool operator==(const Word&) const = default;
};

//  offset  size
//       0     4  rank
//       4     1  fate
//       5     -  why: what is longer than kMostWhy is cut
inline constexpr size_t kMostWhy = 4096;
std::string encode_word(const Word& word);
// The text points into the bytes. INTERNAL: too short or long, or of a rank or fate that there is
// not.
Result<Word> decode_word(std::string_view bytes, int ranks);

// Bytes of each rank, in one message: of each a u32 length, and they.
std::vector<std::byte> encode_all(std::span<const std::vector<std::byte>> all);
// INTERNAL: not those of so many ranks.
Result<std::vector<std::vector<std::byte>>> decode_all(std::span<const std::byte> bytes,
                                                       size_t ranks);

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
//      16    16  a call, with the algorithm in its fourth byte
inline constexpr size_t kStepHeaderSize = 32;

std::array<std::byte, kStepHeaderSize> encode_step(const StepHeader& header);
// INTERNAL: another size, or values that name nothing.
Result<StepHeader> decode_step(std::span<const std::byte> bytes);

// What ranks that join tell each other.
struct Neighbours {
  static constexpr uint8_t kMaps = 1, kReads = 2, kMapsArrays = 4;
  static constexpr uint16_t kNoLink = 0;  // in place of a kind

  Algorithm forced = Algorithm::kNone;  // what it was told to do
  bool deterministic = false;
  uint64_t tuning = 0;  // the digest of its table
  // Of each, whether it maps the stage, reads the memory, and maps arrays in the arena.
  std::vector<uint8_t> ranks;
  // The code of the kind of the link to each.
  std::vector<uint16_t> kinds;

  bool operator==(const Neighbours&) const = default;
};

//  offset  size
//       0     1  algorithm, and 128 where the group is to be deterministic
//       1     8  digest
//       9     3  for each rank: 1 of kMaps, kReads, kMapsArrays; 2 of the link's kind
std::vector<std::byte> encode_neighbours(const Neighbours& neighbours);
// INTERNAL: of another number of ranks, or values that name nothing.
Result<Neighbours> decode_neighbours(std::span<const std::byte> bytes, size_t ranks);

// How others of its host reach a rank's memory, and where its stage lies in that.
struct StagePlace {
  MemoryMark mark;
  SlabFile slab;
  uint64_t offset = 0;  // in the slab

  bool operator==(const StagePlace&) const = default;
};

//  offset  size
//       0     4  process; 0: nobody is to read it
//       4     4  descriptor of the slab
//       8     8  address of the mark
//      16    16  its value
//      32     8  size of the slab
//      40     8  offset
inline constexpr size_t kStagePlaceSize = 48;

std::array<std::byte, kStagePlaceSize> encode_stage_place(const StagePlace& place);
// INTERNAL: another size, or what no process is or has.
Result<StagePlace> decode_stage_place(std::span<const std::byte> bytes);

// Where an array lies in its rank's memory.
struct ArrayPlace {
  static constexpr uint32_t kMostDropped = 0x7fff'ffff;

  uint64_t address = 0;
  uint64_t offset = 0;  // in the slab
  uint64_t slab_size = 0;
  int32_t descriptor = -1;  // of the slab; -1: the array lies outside the arena
  uint32_t slab = 0, generation = 0;
  uint32_t dropped = 0;           // slabs that the arena has given up so far, up to kMostDropped
  bool takes_the_result = false;  // what this rank reduces goes there, and nowhere else

  bool in_arena() const { return descriptor >= 0; }
  bool operator==(const ArrayPlace&) const = default;
};

//  offset  size
//       0     8  address
//       8     8  offset
//      16     8  size of the slab
//      24     4  descriptor
//      28     4  slab
//      32     4  generation
//      36     4  slabs dropped, twice that, and 1 if it takes the result
inline constexpr size_t kArrayPlaceSize = 40;

std::array<std::byte, kArrayPlaceSize> encode_place(const ArrayPlace& place);
// INTERNAL: another size, or what lies outside of the slab.
Result<ArrayPlace> decode_place(std::span<const std::byte> bytes);

// What a rank gives to another one in an all-to-all, and where that lies in its memory.
struct GivenRun {
  uint64_t size = 0;
  uint64_t address = 0;  // 0: not to be read there

  bool operator==(const GivenRun&) const = default;
};

//  offset  size
//       0     8  size
//       8     8  address
inline constexpr size_t kGivenRunSize = 16;

std::array<std::byte, kGivenRunSize> encode_given(const GivenRun& run);
// INTERNAL: another size, or more than any memory has.
Result<GivenRun> decode_given(std::span<const std::byte> bytes);

// An operation whose arrays lie on a device, and how another process of the host reaches them.
struct DeviceOffer {
  struct Array {
    bool offered = false;  // else nothing else is said
    device::IpcHandle handle{};
    uint64_t offset = 0;  // in the allocation

    bool operator==(const Array&) const = default;
  };
  CollectiveCall call;
  Array in, out;
  uint64_t generation = 0;  // another one: something that was offered before has been freed
  double factor = 1;        // others multiply what they read by it, in a reduction
  // Of uneven shares: the size of the longest one, in bytes, and a digest of all sizes. 0 as that:
  // nothing is read where it lies.
  uint64_t longest = 0, shares = 0;

  bool operator==(const DeviceOffer&) const = default;
};

//  offset  size
//       0    32  a step's header: sequence, total and algorithm are 0
//      32     8  whether `in` is offered: 1 or 0
//      40    64  its handle
//     104     8  its offset
//     112    80  the same of `out`
//     192     8  the generation
//     200     8  the factor, a double
//     208     8  the longest share
//     216     8  the digest of shares
inline constexpr size_t kDeviceOfferSize = 224;

std::array<std::byte, kDeviceOfferSize> encode_offer(const DeviceOffer& offer);
// INTERNAL: another size, or values that name nothing.
Result<DeviceOffer> decode_offer(std::span<const std::byte> bytes);

}  // namespace tw::collective
