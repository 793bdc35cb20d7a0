// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/wire.h"

#include "wire/bytes.h"

namespace tw::wire {

static_assert(sizeof(ShmFrame) == kShmFrameSize);

size_t descriptors_of(const ShmFrame& frame) {
  switch (frame.type) {
    case ShmFrameType::kRings:
    case ShmFrameType::kSlab:
    case ShmFrameType::kBlock:
      return 1;
    case ShmFrameType::kSlabGone:
    case ShmFrameType::kBell:
      return 0;
    case ShmFrameType::kProcess:
      return frame.size;
    case ShmFrameType::kRegion:
      return 2;
  }
  return 0;
}

void encode(std::span<std::byte, kShmFrameSize> out, const ShmFrame& frame) {
  store(out.data(), frame);
}

Result<ShmFrame> decode_shm_frame(std::span<const std::byte, kShmFrameSize> bytes) {
  const auto frame = load<ShmFrame>(bytes.data());
  if (frame.magic != ShmFrame{}.magic)
    return protocol_error({"a shared-memory frame without its magic"});
  const auto type = static_cast<uint32_t>(frame.type);
  if (type < 1 || type > 7) return protocol_error({"shared-memory frame type ", type});
  if (frame.zero != 0)
    return protocol_error({"zero field of a shared-memory frame is ", frame.zero});
  const bool sized = frame.type == ShmFrameType::kRings || frame.type == ShmFrameType::kSlab ||
                     frame.type == ShmFrameType::kRegion || frame.type == ShmFrameType::kBlock;
  if ((sized && frame.size == 0) || (frame.type == ShmFrameType::kProcess && frame.size > 1))
    return protocol_error({"size ", frame.size, " in a shared-memory frame of type ", type});
  return frame;
}

}  // namespace tw::wire
