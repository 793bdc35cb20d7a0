// SPDX-License-Identifier: Apache-2.0
#include "collective/wire.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "wire/bytes.h"

namespace tw::collective {
namespace {

constexpr size_t kNeighboursSize = 9;                                   // without the ranks
constexpr size_t kNeighbourSize = 3;                                    // a rank
constexpr size_t kAnswerSize = sizeof(wire::Nonce) + sizeof(uint32_t);  // without the Welcome

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
  return Answer{wire::load<wire::Nonce>(bytes.data()),
                wire::load<uint32_t>(bytes.data() + sizeof(wire::Nonce)), std::move(*welcome)};
}

std::array<std::byte, kStepHeaderSize> encode_step(const StepHeader& header) {
  std::array<std::byte, kStepHeaderSize> bytes;
  std::byte* at = wire::store(bytes.data(), header.sequence);
  at = wire::store(at, header.total);
  at = wire::store(at, header.call.kind);
  at = wire::store(at, header.call.type);
  at = wire::store(at, header.call.op);
  at = wire::store(at, header.algorithm);
  at = wire::store(at, header.call.root);
  wire::store(at, header.call.count);
  return bytes;
}

Result<StepHeader> decode_step(std::span<const std::byte> bytes) {
  if (bytes.size() != kStepHeaderSize)
    return wire::protocol_error({"a message of an operation begins with ", bytes.size(),
                                 " bytes instead of ", kStepHeaderSize});
  const auto kind = wire::load<uint8_t>(bytes.data() + 16);
  const auto type = wire::load<uint8_t>(bytes.data() + 17);
  const auto op = wire::load<uint8_t>(bytes.data() + 18);
  const auto algorithm = wire::load<uint8_t>(bytes.data() + 19);
  if (kind >= kCollectiveKinds || type >= kDataTypes || op >= kReduceOps ||
      algorithm >= wire::kAlgorithms)
    return wire::protocol_error({"a message of operation ", int{kind}, " of type ", int{type},
                                 ", reduction ", int{op}, ", algorithm ", int{algorithm}});
  StepHeader header;
  header.sequence = wire::load<uint64_t>(bytes.data());
  header.total = wire::load<uint64_t>(bytes.data() + 8);
  header.call.kind = static_cast<CollectiveKind>(kind);
  header.call.type = static_cast<DataType>(type);
  header.call.op = static_cast<ReduceOp>(op);
  header.algorithm = static_cast<Algorithm>(algorithm);
  header.call.root = wire::load<int32_t>(bytes.data() + 20);
  header.call.count = wire::load<uint64_t>(bytes.data() + 24);
  return header;
}

std::vector<std::byte> encode_neighbours(const Neighbours& neighbours) {
  std::vector<std::byte> bytes(kNeighboursSize + neighbours.ranks.size() * kNeighbourSize);
  std::byte* at = wire::store(bytes.data(), neighbours.forced);
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
  const auto forced = wire::load<uint8_t>(bytes.data());
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
  wire::store(at, offer.generation);
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
  return offer;
}

}  // namespace tw::collective
