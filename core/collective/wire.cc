// SPDX-License-Identifier: Apache-2.0
#include "collective/wire.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/text.h"
#include "wire/bytes.h"

namespace tw::collective {
namespace {

constexpr size_t kNeighboursSize = 9;                                       // without the ranks
constexpr uint8_t kDeterministic = 128;                                     // beside an algorithm
constexpr size_t kNeighbourSize = 3;                                        // a rank
constexpr size_t kAlgorithmOfStep = 19;                                     // its offset
constexpr size_t kAnswerSize = 2 * sizeof(wire::Nonce) + sizeof(uint32_t);  // without the Welcome
constexpr size_t kWordSize = 5;                                             // without the text

// All but the fourth byte.
Result<CollectiveCall> call_at(const std::byte* at) {
  const auto kind = wire::load<uint8_t>(at);
  const auto type = wire::load<uint8_t>(at + 1);
  const auto op = wire::load<uint8_t>(at + 2);
  if (kind >= kCollectiveKinds || type >= kDataTypes || op >= kReduceOps)
    return wire::protocol_error(
        {"a rank calls operation ", int{kind}, " of type ", int{type}, ", reduction ", int{op}});
  CollectiveCall call;
  call.kind = static_cast<CollectiveKind>(kind);
  call.type = static_cast<DataType>(type);
  call.op = static_cast<ReduceOp>(op);
  call.root = wire::load<int32_t>(at + 4);
  call.count = wire::load<uint64_t>(at + 8);
  return call;
}

// What a rank has written where others of its host read it.
Status wrong_size(std::string_view what, size_t found, size_t expected) {
  return wire::protocol_error({what, " has ", found, " bytes instead of ", expected});
}

}  // namespace

std::array<std::byte, kPresenceSize> encode_presence(const Presence& presence) {
  std::array<std::byte, kPresenceSize> bytes;
  wire::encode_hello(std::span(bytes).first<wire::kHelloSize>(), presence.hello);
  std::byte* const at = wire::store(bytes.data() + wire::kHelloSize, presence.nonce);
  wire::store(at, presence.size);
  return bytes;
}

Result<Presence> decode_presence(std::span<const std::byte> bytes) {
  if (bytes.size() != kPresenceSize)
    return Status{Code::kInvalidArgument,
                  text({"what a rank says of itself has ", bytes.size(), " bytes instead of ",
                        kPresenceSize, ": install the same version of tensorwire everywhere"})};
  auto hello = wire::decode_hello(bytes.first(wire::kHelloSize));
  if (!hello) return hello.status();
  const std::byte* const at = bytes.data() + wire::kHelloSize;
  return Presence{*hello, wire::load<wire::Nonce>(at),
                  wire::load<uint32_t>(at + sizeof(wire::Nonce))};
}

std::vector<std::byte> encode_answer(const Answer& answer) {
  std::vector<std::byte> bytes(kAnswerSize + wire::welcome_size(answer.welcome));
  std::byte* at = wire::store(bytes.data(), answer.to);
  at = wire::store(at, answer.key);
  at = wire::store(at, answer.size);
  wire::encode_welcome(at, answer.welcome);
  return bytes;
}

Result<Answer> decode_answer(std::span<const std::byte> bytes) {
  if (bytes.size() < kAnswerSize)
    return Status{Code::kInvalidArgument,
                  text({"an answer to a rank is cut short after ", bytes.size(), " bytes"})};
  auto welcome = wire::decode_welcome(bytes.subspan(kAnswerSize));
  if (!welcome) return welcome.status();
  const std::byte* const at = bytes.data() + sizeof(wire::Nonce);
  return Answer{wire::load<wire::Nonce>(bytes.data()), wire::load<wire::Nonce>(at),
                wire::load<uint32_t>(at + sizeof(wire::Nonce)), std::move(*welcome)};
}

std::string encode_word(const Word& word) {
  const std::string_view why = wire::cut_utf8(word.why, kMostWhy);
  std::array<std::byte, kWordSize> fixed;
  wire::store(wire::store(fixed.data(), static_cast<uint32_t>(word.rank)), word.fate);
  std::string bytes(reinterpret_cast<const char*>(fixed.data()), fixed.size());
  return bytes.append(why);
}

Result<Word> decode_word(std::string_view bytes, int ranks) {
  if (bytes.size() < kWordSize || bytes.size() > kWordSize + kMostWhy)
    return wire::protocol_error({"a word of a rank has ", bytes.size(), " bytes"});
  const auto* const at = reinterpret_cast<const std::byte*>(bytes.data());
  const auto rank = wire::load<uint32_t>(at);
  const auto fate = wire::load<uint8_t>(at + 4);
  if (rank >= static_cast<uint32_t>(ranks) || fate > static_cast<uint8_t>(Fate::kLost))
    return wire::protocol_error({"a word of fate ", int{fate}, " of rank ", rank});
  return Word{static_cast<int>(rank), static_cast<Fate>(fate), bytes.substr(kWordSize)};
}

std::vector<std::byte> encode_all(std::span<const std::vector<std::byte>> all) {
  size_t size = 0;
  for (const auto& each : all) size += sizeof(uint32_t) + each.size();
  std::vector<std::byte> bytes(size);
  std::byte* at = bytes.data();
  for (const auto& each : all) {
    at = wire::store(at, static_cast<uint32_t>(each.size()));
    at = std::ranges::copy(each, at).out;
  }
  return bytes;
}

Result<std::vector<std::vector<std::byte>>> decode_all(std::span<const std::byte> bytes,
                                                       size_t ranks) {
  std::vector<std::vector<std::byte>> all;
  while (bytes.size() >= sizeof(uint32_t) && all.size() < ranks) {
    const auto size = wire::load<uint32_t>(bytes.data());
    bytes = bytes.subspan(sizeof size);
    if (size > bytes.size()) break;
    all.emplace_back(bytes.begin(), bytes.begin() + size);
    bytes = bytes.subspan(size);
  }
  if (all.size() != ranks || !bytes.empty())
    return wire::protocol_error({"what ", ranks, " ranks say ends after ", all.size()});
  return all;
}

CallBytes encode_call(const CollectiveCall& call) {
  CallBytes bytes;
  std::byte* at = wire::store(bytes.data(), call.kind);
  at = wire::store(at, call.type);
  at = wire::store(at, call.op);
  at = wire::store(at, uint8_t{0});
  at = wire::store(at, call.root);
  wire::store(at, call.count);
  return bytes;
}

Result<CollectiveCall> decode_call(std::span<const std::byte> bytes) {
  if (bytes.size() != kCallSize) return wrong_size("a call", bytes.size(), kCallSize);
  if (const auto reserved = wire::load<uint8_t>(bytes.data() + 3); reserved != 0)
    return wire::protocol_error({"a call has ", int{reserved}, " where nothing is said"});
  return call_at(bytes.data());
}

std::array<std::byte, kStepHeaderSize> encode_step(const StepHeader& header) {
  std::array<std::byte, kStepHeaderSize> bytes;
  std::byte* at = wire::store(bytes.data(), header.sequence);
  at = wire::store(at, header.total);
  wire::store(at, encode_call(header.call));
  wire::store(bytes.data() + kAlgorithmOfStep, header.algorithm);
  return bytes;
}

Result<StepHeader> decode_step(std::span<const std::byte> bytes) {
  if (bytes.size() != kStepHeaderSize)
    return wrong_size("what a message of an operation begins with", bytes.size(), kStepHeaderSize);
  const auto call = call_at(bytes.data() + 16);
  if (!call) return call.status();
  const auto algorithm = wire::load<uint8_t>(bytes.data() + kAlgorithmOfStep);
  if (algorithm >= wire::kAlgorithms)
    return wire::protocol_error({"a message of an operation by algorithm ", int{algorithm}});
  StepHeader header;
  header.sequence = wire::load<uint64_t>(bytes.data());
  header.total = wire::load<uint64_t>(bytes.data() + 8);
  header.call = *call;
  header.algorithm = static_cast<Algorithm>(algorithm);
  return header;
}

std::vector<std::byte> encode_neighbours(const Neighbours& neighbours) {
  std::vector<std::byte> bytes(kNeighboursSize + neighbours.ranks.size() * kNeighbourSize);
  const auto forced = static_cast<uint8_t>(neighbours.forced);
  std::byte* at = wire::store(
      bytes.data(), static_cast<uint8_t>(forced | (neighbours.deterministic ? kDeterministic : 0)));
  at = wire::store(at, neighbours.tuning);
  for (size_t i = 0; i < neighbours.ranks.size(); ++i) {
    at = wire::store(at, neighbours.ranks[i]);
    at = wire::store(at, neighbours.kinds[i]);
  }
  return bytes;
}

Result<Neighbours> decode_neighbours(std::span<const std::byte> bytes, size_t ranks) {
  if (bytes.size() != kNeighboursSize + ranks * kNeighbourSize)
    return wire::protocol_error({"a list of ", ranks, " ranks in ", bytes.size(), " bytes"});
  Neighbours found;
  const auto first = wire::load<uint8_t>(bytes.data());
  found.deterministic = (first & kDeterministic) != 0;
  const auto forced = static_cast<uint8_t>(first & ~kDeterministic);
  found.forced = static_cast<Algorithm>(forced);
  if (found.forced != Algorithm::kNone && !wire::reduces_all(found.forced))
    return wire::protocol_error({"a rank takes algorithm ", int{forced}});
  found.tuning = wire::load<uint64_t>(bytes.data() + 1);
  for (size_t i = 0; i < ranks; ++i) {
    const std::byte* const at = bytes.data() + kNeighboursSize + i * kNeighbourSize;
    const auto said = wire::load<uint8_t>(at);
    if ((said & ~(Neighbours::kMaps | Neighbours::kReads | Neighbours::kMapsArrays)) != 0)
      return wire::protocol_error({"a rank says ", int{said}, " of another one"});
    found.ranks.push_back(said);
    found.kinds.push_back(wire::load<uint16_t>(at + 1));
  }
  return found;
}

std::array<std::byte, kStagePlaceSize> encode_stage_place(const StagePlace& place) {
  std::array<std::byte, kStagePlaceSize> bytes;
  std::byte* at = wire::store(bytes.data(), place.mark.pid);
  at = wire::store(at, place.slab.descriptor);
  at = wire::store(at, place.mark.address);
  at = wire::store(at, place.mark.value);
  at = wire::store(at, place.slab.size);
  wire::store(at, place.offset);
  return bytes;
}

Result<StagePlace> decode_stage_place(std::span<const std::byte> bytes) {
  if (bytes.size() != kStagePlaceSize)
    return wrong_size("the place of a stage", bytes.size(), kStagePlaceSize);
  const StagePlace place{
      {wire::load<int32_t>(bytes.data()), wire::load<uint64_t>(bytes.data() + 8),
       wire::load<MemoryMark::Value>(bytes.data() + 16)},
      {wire::load<int32_t>(bytes.data() + 4), wire::load<uint64_t>(bytes.data() + 32)},
      wire::load<uint64_t>(bytes.data() + 40)};
  if (place.mark.pid < 0 || place.slab.descriptor < 0 || place.offset > place.slab.size)
    return wire::protocol_error({"the stage of process ", place.mark.pid, " lies at ", place.offset,
                                 " of ", place.slab.size, " bytes, descriptor ",
                                 place.slab.descriptor});
  return place;
}

std::array<std::byte, kArrayPlaceSize> encode_place(const ArrayPlace& place) {
  std::array<std::byte, kArrayPlaceSize> bytes;
  std::byte* at = wire::store(bytes.data(), place.address);
  at = wire::store(at, place.offset);
  at = wire::store(at, place.slab_size);
  at = wire::store(at, place.descriptor);
  at = wire::store(at, place.slab);
  at = wire::store(at, place.generation);
  wire::store(at, place.dropped << 1 | uint32_t{place.takes_the_result});
  return bytes;
}

Result<ArrayPlace> decode_place(std::span<const std::byte> bytes) {
  if (bytes.size() != kArrayPlaceSize)
    return wrong_size("the place of an array", bytes.size(), kArrayPlaceSize);
  ArrayPlace place;
  place.address = wire::load<uint64_t>(bytes.data());
  place.offset = wire::load<uint64_t>(bytes.data() + 8);
  place.slab_size = wire::load<uint64_t>(bytes.data() + 16);
  place.descriptor = wire::load<int32_t>(bytes.data() + 24);
  place.slab = wire::load<uint32_t>(bytes.data() + 28);
  place.generation = wire::load<uint32_t>(bytes.data() + 32);
  const auto last = wire::load<uint32_t>(bytes.data() + 36);
  place.dropped = last >> 1;
  place.takes_the_result = (last & 1) != 0;
  if (place.descriptor < -1 || place.offset > place.slab_size)
    return wire::protocol_error({"an array lies at ", place.offset, " of ", place.slab_size,
                                 " bytes, descriptor ", place.descriptor});
  return place;
}

std::array<std::byte, kGivenRunSize> encode_given(const GivenRun& run) {
  std::array<std::byte, kGivenRunSize> bytes;
  wire::store(wire::store(bytes.data(), run.size), run.address);
  return bytes;
}

Result<GivenRun> decode_given(std::span<const std::byte> bytes) {
  if (bytes.size() != kGivenRunSize)
    return wrong_size("what a rank says it gives", bytes.size(), kGivenRunSize);
  const GivenRun run{wire::load<uint64_t>(bytes.data()), wire::load<uint64_t>(bytes.data() + 8)};
  uint64_t end = run.address;
  if (!wire::add_within(end, run.size, UINT64_MAX) || run.size > INT64_MAX)
    return wire::protocol_error({"a rank gives ", run.size, " bytes at ", run.address});
  return run;
}

std::array<std::byte, kDeviceOfferSize> encode_offer(const DeviceOffer& offer) {
  std::array<std::byte, kDeviceOfferSize> bytes;
  StepHeader header;
  header.call = offer.call;
  std::byte* at = std::ranges::copy(encode_step(header), bytes.data()).out;
  for (const DeviceOffer::Array* array : {&offer.in, &offer.out}) {
    at = wire::store(at, uint64_t{array->offered});
    at = std::ranges::copy(array->handle, at).out;
    at = wire::store(at, array->offset);
  }
  at = wire::store(at, offer.generation);
  at = wire::store(at, std::bit_cast<uint64_t>(offer.factor));
  at = wire::store(at, offer.longest);
  wire::store(at, offer.shares);
  return bytes;
}

Result<DeviceOffer> decode_offer(std::span<const std::byte> bytes) {
  if (bytes.size() != kDeviceOfferSize)
    return wire::protocol_error({"what a rank says of its arrays has ", bytes.size(),
                                 " bytes instead of ", kDeviceOfferSize});
  const auto header = decode_step(bytes.first(kStepHeaderSize));
  if (!header) return header.status();
  StepHeader expected;
  expected.call = header->call;
  if (*header != expected)
    return wire::protocol_error({"what a rank says of its arrays is a step of an operation"});
  DeviceOffer offer;
  offer.call = header->call;
  const std::byte* at = bytes.data() + kStepHeaderSize;
  for (DeviceOffer::Array* array : {&offer.in, &offer.out}) {
    const auto offered = wire::load<uint64_t>(at);
    if (offered > 1) return wire::protocol_error({"an array is offered ", offered, " times"});
    array->offered = offered != 0;
    std::copy_n(at + 8, array->handle.size(), array->handle.begin());
    array->offset = wire::load<uint64_t>(at + 72);
    at += 80;
  }
  offer.generation = wire::load<uint64_t>(at);
  offer.factor = std::bit_cast<double>(wire::load<uint64_t>(at + 8));
  offer.longest = wire::load<uint64_t>(at + 16);
  offer.shares = wire::load<uint64_t>(at + 24);
  return offer;
}

}  // namespace tw::collective
