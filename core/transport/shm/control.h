// SPDX-License-Identifier: Apache-2.0
// The unix socket beside a shared-memory link: descriptors travel on it, it rings, and its end is
// the link's end.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/shm/wire.h"

namespace tw {

struct ShmMessage {
  wire::ShmFrame frame;
  // None with the frame of a slab, a region or a block when this process had no room for them
  // (ulimit -n).
  std::vector<Fd> descriptors;
};

// What has become of a frame.
enum class ShmSent : uint8_t {
  kSent,
  kFull,     // not sent: the peer has not taken enough of the earlier ones
  kCrowded,  // not sent: descriptors of this user's are on their way, to anybody, and not taken
};

// One whole frame, not blocking. UNAVAILABLE: the peer is gone.
Result<ShmSent> try_shm_frame(int socket, const wire::ShmFrame& frame,
                              std::span<const int> descriptors);
// As try_shm_frame(). RESOURCE_EXHAUSTED: it was not sent.
Status send_shm_frame(int socket, const wire::ShmFrame& frame, std::span<const int> descriptors);

// Has the peer look at the rings. Never blocks, whatever the peer does: a socket's two ends share
// no flags, and MSG_DONTWAIT is of the call. A peer that has not taken all earlier frames has
// something to wake up for already.
void ring_shm_bell(int socket);

// Reads frames, which may come in pieces, without blocking. Descriptors that are neither memory
// files nor pidfds are refused, and closed by a thread that may wait: to look at a file of a peer's
// file system, or to close a socket of a peer's that lingers, may take as long as the peer likes.
class ShmFrameReader {
 public:
  enum class Got : uint8_t { kFrame, kNothing, kEnd };
  // kEnd: the peer closed the socket. INTERNAL: it broke the protocol. RESOURCE_EXHAUSTED: what
  // the link cannot do without was lost for want of descriptors.
  Result<Got> read(int socket, ShmMessage& message);

 private:
  std::array<std::byte, wire::kShmFrameSize> bytes_{};
  size_t have_ = 0;
  std::vector<Fd> descriptors_;
  bool lost_ = false;  // some of them had no room here
};

}  // namespace tw
