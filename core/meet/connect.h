// SPDX-License-Identifier: Apache-2.0
// The client's way to a link: connect, prove, set up the transport.
#pragma once

#include <memory>
#include <string>

#include "engine/waiting.h"
#include "meet/handshake.h"
#include "meet/peer.h"
#include "process/runtime.h"
#include "transport/transport.h"

namespace tw::meet {

struct Connected {
  std::unique_ptr<Transport> transport;
  Peer peer;
};

// What the bootstrap told about the server.
struct Invitation {
  std::string address;  // <kind>:<path of the socket>, or <kind>:<host>:<port>
  wire::SessionId session{};
  Secret secret;
  wire::InstanceId instance{};
  wire::Hello hello;
};

// The version that both speak, unless one lacks what the other needs. FAILED_PRECONDITION.
Result<uint16_t> agreed_version(const wire::Hello& ours, const wire::Hello& theirs);

// Blocks until the deadline at most. UNAVAILABLE, DEADLINE_EXCEEDED, UNAUTHENTICATED,
// PERMISSION_DENIED, FAILED_PRECONDITION, INVALID_ARGUMENT (the address), RESOURCE_EXHAUSTED.
// CANCELLED: interrupted.
Result<Connected> connect(Runtime& runtime, const Invitation& invitation, const Wait& wait);
inline Result<Connected> connect(Runtime& runtime, const Invitation& invitation, Nanos deadline) {
  return connect(runtime, invitation, Wait{deadline, nullptr, nullptr});
}

}  // namespace tw::meet
