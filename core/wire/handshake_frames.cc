// SPDX-License-Identifier: Apache-2.0
#include "wire/handshake_frames.h"

#include "wire/bytes.h"

namespace tw::wire {
namespace {

static_assert(sizeof(ClientOpen) == kClientOpenSize);
static_assert(offsetof(ClientOpen, version) == 8);
static_assert(offsetof(ClientOpen, transport) == 10);
static_assert(offsetof(ClientOpen, zero) == 12);
static_assert(offsetof(ClientOpen, session) == 16);
static_assert(offsetof(ClientOpen, nonce) == 32);

static_assert(sizeof(ServerProof) == kServerProofSize);
static_assert(offsetof(ServerProof, code) == 8);
static_assert(offsetof(ServerProof, zero) == 12);
static_assert(offsetof(ServerProof, nonce) == 16);
static_assert(offsetof(ServerProof, proof) == 48);

static_assert(sizeof(ClientProof) == kClientProofSize);
static_assert(offsetof(ClientProof, proof) == 8);

static_assert(sizeof(ServerReady) == kServerReadySize);
static_assert(offsetof(ServerReady, code) == 8);
static_assert(offsetof(ServerReady, zero) == 12);

static_assert(kServerProofSize <= kMaxHandshakeFrameSize &&
              kClientOpenSize <= kMaxHandshakeFrameSize);

template <class T>
Status bad_field(std::string_view frame, std::string_view field, T value) {
  return protocol_error({"handshake: ", frame, ": ", field, " is ", value});
}

Status check_magic(std::string_view frame, const Magic& found, const Magic& expected) {
  if (found == expected) return {};
  return bad_field(frame, "magic", quoted({found.data(), found.size()}));
}

// What the two frames of the server have in common.
template <class Frame>
Result<Frame> decode_answer(std::string_view name, const std::byte* bytes, const Magic& magic) {
  const auto frame = load<Frame>(bytes);
  if (Status s = check_magic(name, frame.magic, magic); !s.ok()) return s;
  if (frame.code > kHighestCode) return bad_field(name, "code", frame.code);
  if (frame.zero != 0) return bad_field(name, "zero", frame.zero);
  return frame;
}

}  // namespace

Result<ClientOpen> decode_client_open(std::span<const std::byte, kClientOpenSize> bytes) {
  const auto frame = load<ClientOpen>(bytes.data());
  if (Status s = check_magic("ClientOpen", frame.magic, kClientOpenMagic); !s.ok()) return s;
  if (frame.version == 0) return bad_field("ClientOpen", "version", frame.version);
  if (frame.transport == 0) return bad_field("ClientOpen", "transport", 0);
  if (frame.zero != 0) return bad_field("ClientOpen", "zero", frame.zero);
  return frame;
}

Result<ServerProof> decode_server_proof(std::span<const std::byte, kServerProofSize> bytes) {
  return decode_answer<ServerProof>("ServerProof", bytes.data(), kServerProofMagic);
}

Result<ClientProof> decode_client_proof(std::span<const std::byte, kClientProofSize> bytes) {
  const auto frame = load<ClientProof>(bytes.data());
  if (Status s = check_magic("ClientProof", frame.magic, kClientProofMagic); !s.ok()) return s;
  return frame;
}

Result<ServerReady> decode_server_ready(std::span<const std::byte, kServerReadySize> bytes) {
  return decode_answer<ServerReady>("ServerReady", bytes.data(), kServerReadyMagic);
}

void encode(std::span<std::byte, kClientOpenSize> out, const ClientOpen& frame) {
  store(out.data(), frame);
}
void encode(std::span<std::byte, kServerProofSize> out, const ServerProof& frame) {
  store(out.data(), frame);
}
void encode(std::span<std::byte, kClientProofSize> out, const ClientProof& frame) {
  store(out.data(), frame);
}
void encode(std::span<std::byte, kServerReadySize> out, const ServerReady& frame) {
  store(out.data(), frame);
}

}  // namespace tw::wire
