#include "wire/shm_frames.h"

#include "wire/bytes.h"

namespace tw::wire {

static_assert(sizeof(ShmFrame) == kShmFrameSize);

size_t descriptors_of(ShmFrameType type) {
  switch (type) {
    case ShmFrameType::kRings:
    case ShmFrameType::kSlab:
      return 1;
    case ShmFrameType::kSlabGone:
    case ShmFrameType::kBell:
      return 0;
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
  if (type < 1 || type > 4) return protocol_error({"shared-memory frame type ", type});
  if (frame.zero != 0)
    return protocol_error({"zero field of a shared-memory frame is ", frame.zero});
  if (descriptors_of(frame.type) != 0 && frame.size == 0)
    return protocol_error({"size 0 in a shared-memory frame"});
  return frame;
}

}  // namespace tw::wire
