// SPDX-License-Identifier: Apache-2.0
#include "wire/handshake_frames.h"

#include "test/wire/support.h"

namespace tw::wire {
namespace {

using test::Bytes;
using test::check_says;
using test::hex;
using test::Random;

template <class Frame>
Bytes encoded_frame(const Frame& frame) {
  Bytes bytes(sizeof(Frame));
  encode(std::span<std::byte, sizeof(Frame)>(bytes), frame);
  return bytes;
}

template <class Frame>
Result<Frame> decoded(const Bytes& bytes) {
  const std::span<const std::byte, sizeof(Frame)> fixed(bytes);
  if constexpr (std::is_same_v<Frame, ClientOpen>) return decode_client_open(fixed);
  if constexpr (std::is_same_v<Frame, ServerProof>) return decode_server_proof(fixed);
  if constexpr (std::is_same_v<Frame, ClientProof>) return decode_client_proof(fixed);
  if constexpr (std::is_same_v<Frame, ServerReady>) return decode_server_ready(fixed);
}

template <size_t kSize>
std::array<uint8_t, kSize> random_array(Random& random) {
  std::array<uint8_t, kSize> out;
  for (auto& byte : out) byte = static_cast<uint8_t>(random.number());
  return out;
}

template <class Frame>
void check_round_trip(const Frame& frame) {
  const auto back = decoded<Frame>(encoded_frame(frame));
  REQUIRE(back.ok());
  CHECK(*back == frame);
}

TEST_CASE("handshake frames have the bytes of docs/wire-format.md") {
  ClientOpen open;
  open.version = 1;
  open.transport = 1;
  open.session = {0xaa};
  open.nonce = {0xbb};
  CHECK(encoded_frame(open) ==
        hex("54574f50454e3031 0100 0100 00000000"
            "aa000000000000000000000000000000"
            "bb00000000000000000000000000000000000000000000000000000000000000"));
  ServerProof answer;
  answer.code = 16;
  answer.nonce = {0xcc};
  answer.proof = {0xdd};
  CHECK(encoded_frame(answer) ==
        hex("5457535052463031 10000000 00000000"
            "cc00000000000000000000000000000000000000000000000000000000000000"
            "dd00000000000000000000000000000000000000000000000000000000000000"));
  ClientProof proof;
  proof.proof = {0xee};
  CHECK(encoded_frame(proof) ==
        hex("5457435052463031"
            "ee00000000000000000000000000000000000000000000000000000000000000"));
  CHECK(encoded_frame(ServerReady{}) == hex("5457524541445931 00000000 00000000"));
}

TEST_CASE("random handshake frames come back as they were sent") {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    ClientOpen open;
    open.version = static_cast<uint16_t>(1 + random.up_to(65534));
    open.transport = static_cast<uint16_t>(1 + random.up_to(65534));
    open.session = random_array<16>(random);
    open.nonce = random_array<32>(random);
    check_round_trip(open);
    ServerProof answer;
    answer.code = static_cast<uint32_t>(random.up_to(16));
    answer.nonce = random_array<32>(random);
    answer.proof = random_array<32>(random);
    check_round_trip(answer);
    ClientProof proof;
    proof.proof = random_array<32>(random);
    check_round_trip(proof);
    ServerReady ready;
    ready.code = static_cast<uint32_t>(random.up_to(16));
    check_round_trip(ready);
  }
}

template <class Frame>
void check_corrupted(const Frame& frame, size_t offset, uint8_t value, std::string_view name,
                     std::string_view words) {
  Bytes bytes = encoded_frame(frame);
  bytes[offset] = std::byte{value};
  check_says(decoded<Frame>(bytes).status(), Code::kInternal,
             {"protocol error: handshake: ", name, words});
}

TEST_CASE("every field of a handshake frame is checked, and named when it is wrong") {
  ClientOpen open;
  open.version = open.transport = 1;
  REQUIRE(decoded<ClientOpen>(encoded_frame(open)).ok());
  for (size_t i = 0; i < 8; ++i) {
    check_corrupted(open, i, 0x01, "ClientOpen", "magic is '");
    check_corrupted(ServerProof{}, i, 0x01, "ServerProof", "magic is '");
    check_corrupted(ClientProof{}, i, 0x01, "ClientProof", "magic is '");
    check_corrupted(ServerReady{}, i, 0x01, "ServerReady", "magic is '");
  }
  check_corrupted(open, 8, 0, "ClientOpen", "version is 0");
  check_corrupted(open, 10, 0, "ClientOpen", "transport is 0");
  check_corrupted(open, 13, 1, "ClientOpen", "zero is 256");
  check_corrupted(ServerProof{}, 8, 17, "ServerProof", "code is 17");
  check_corrupted(ServerProof{}, 15, 1, "ServerProof", "zero is 16777216");
  check_corrupted(ServerReady{}, 8, 200, "ServerReady", "code is 200");
  check_corrupted(ServerReady{}, 12, 1, "ServerReady", "zero is 1");
}

TEST_CASE("a frame of one kind is none of another") {
  CHECK(kClientOpenMagic != kServerProofMagic);
  CHECK(kClientProofMagic != kServerReadyMagic);
}

}  // namespace
}  // namespace tw::wire
