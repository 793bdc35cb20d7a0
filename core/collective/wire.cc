// SPDX-License-Identifier: Apache-2.0
#include "collective/wire.h"

#include "wire/bytes.h"

namespace tw::collective {

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
      algorithm >= kAlgorithms)
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

}  // namespace tw::collective
