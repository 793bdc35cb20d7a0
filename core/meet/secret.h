// SPDX-License-Identifier: Apache-2.0
// Shared secrets of the handshake, and the proof that one knows a secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "wire/handshake_frames.h"
#include "wire/hello.h"

namespace tw::meet {

// 32 bytes that are wiped when the object goes, or is moved from.
class Secret {
 public:
  static constexpr size_t kSize = 32;

  Secret() = default;
  explicit Secret(std::span<const uint8_t, kSize> bytes);
  Secret(const Secret& other) = default;
  Secret& operator=(const Secret& other) = default;
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret() { wipe(); }

  static Result<Secret> random();
  std::span<const uint8_t, kSize> bytes() const { return bytes_; }
  void wipe();

 private:
  std::array<uint8_t, kSize> bytes_{};
};

// What both proofs of one handshake are about; they differ by their label only.
struct Transcript {
  uint16_t version = 0;
  uint16_t transport = 0;
  wire::SessionId session{};
  wire::InstanceId instance{};  // of the server
  wire::Nonce client_nonce{};
  wire::Nonce server_nonce{};
};

inline constexpr std::string_view kServerLabel = "tensorwire server proof 1";
inline constexpr std::string_view kClientLabel = "tensorwire client proof 1";

// HMAC-SHA256 keyed by the secret over label and transcript, fields in the order above.
wire::Proof prove(const Secret& secret, std::string_view label, const Transcript& about);

}  // namespace tw::meet
