// SPDX-License-Identifier: Apache-2.0
// The fixed-size frames that open a data connection. Until they are through, nothing else that a
// stranger sends is read.
//
//   client: ClientOpen ->            <- server: ServerProof (or a refusal)
//   client: ClientProof ->           <- server: ServerReady (or a refusal)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace tw::wire {

using SessionId = std::array<uint8_t, 16>;
using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;
using Magic = std::array<char, 8>;

inline constexpr Magic kClientOpenMagic = {'T', 'W', 'O', 'P', 'E', 'N', '0', '1'};
inline constexpr Magic kServerProofMagic = {'T', 'W', 'S', 'P', 'R', 'F', '0', '1'};
inline constexpr Magic kClientProofMagic = {'T', 'W', 'C', 'P', 'R', 'F', '0', '1'};
inline constexpr Magic kServerReadyMagic = {'T', 'W', 'R', 'E', 'A', 'D', 'Y', '1'};

struct ClientOpen {
  Magic magic = kClientOpenMagic;
  uint16_t version = 0;
  uint16_t transport = 0;  // what the connection is to become: the code of its kind, not 0
  uint32_t zero = 0;
  SessionId session{};
  Nonce nonce{};

  bool operator==(const ClientOpen&) const = default;
};

struct ServerProof {
  Magic magic = kServerProofMagic;
  uint32_t code = 0;  // a gRPC status code; 0, or a refusal with a zero nonce and proof
  uint32_t zero = 0;
  Nonce nonce{};
  Proof proof{};

  bool operator==(const ServerProof&) const = default;
};

struct ClientProof {
  Magic magic = kClientProofMagic;
  Proof proof{};

  bool operator==(const ClientProof&) const = default;
};

struct ServerReady {
  Magic magic = kServerReadyMagic;
  uint32_t code = 0;  // a gRPC status code; 0, or a refusal
  uint32_t zero = 0;

  bool operator==(const ServerReady&) const = default;
};

inline constexpr size_t kClientOpenSize = 64;
inline constexpr size_t kServerProofSize = 80;
inline constexpr size_t kClientProofSize = 40;
inline constexpr size_t kServerReadySize = 16;
inline constexpr size_t kMaxHandshakeFrameSize = 80;

// Each answers INTERNAL, "protocol error: ...", that names the field.
Result<ClientOpen> decode_client_open(std::span<const std::byte, kClientOpenSize> bytes);
Result<ServerProof> decode_server_proof(std::span<const std::byte, kServerProofSize> bytes);
Result<ClientProof> decode_client_proof(std::span<const std::byte, kClientProofSize> bytes);
Result<ServerReady> decode_server_ready(std::span<const std::byte, kServerReadySize> bytes);

void encode(std::span<std::byte, kClientOpenSize> out, const ClientOpen& frame);
void encode(std::span<std::byte, kServerProofSize> out, const ServerProof& frame);
void encode(std::span<std::byte, kClientProofSize> out, const ClientProof& frame);
void encode(std::span<std::byte, kServerReadySize> out, const ServerReady& frame);

}  // namespace tw::wire
