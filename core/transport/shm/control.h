// The unix socket beside a shared-memory link: descriptors travel on it, and its end is the link's
// end.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "wire/shm_frames.h"

namespace tw {

struct ShmMessage {
  wire::ShmFrame frame;
  std::vector<Fd> descriptors;
};

// One whole frame, not blocking. RESOURCE_EXHAUSTED: the peer has not taken enough of the earlier
// ones. UNAVAILABLE: the peer is gone.
Status send_shm_frame(int socket, const wire::ShmFrame& frame, std::span<const int> descriptors);

// Reads frames, which may come in pieces, without blocking.
class ShmFrameReader {
 public:
  enum class Got : uint8_t { kFrame, kNothing, kEnd };
  // kEnd: the peer closed the socket. INTERNAL: it broke the protocol.
  Result<Got> read(int socket, ShmMessage& message);

 private:
  std::array<std::byte, wire::kShmFrameSize> bytes_{};
  size_t have_ = 0;
  std::vector<Fd> descriptors_;
};

}  // namespace tw
