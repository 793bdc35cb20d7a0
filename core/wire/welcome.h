// SPDX-License-Identifier: Apache-2.0
// Welcome: what a server tells a process that it admits, over a bootstrap of which the runtime
// knows nothing. Who reads one has no proof yet of who wrote it.
//
//   u16 version | u16 number of addresses | u32 zero | Hello | instance | session | secret
//   addresses, best first: u16 length, bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "wire/handshake_frames.h"
#include "wire/hello.h"

namespace tw::wire {

inline constexpr uint16_t kWelcomeVersion = 1;
inline constexpr size_t kSecretSize = 32;
inline constexpr size_t kMaxAddresses = 32;
inline constexpr size_t kMaxAddressLength = 512;

struct Welcome {
  Hello hello;  // the server's own
  InstanceId instance{};
  SessionId session{};
  std::array<uint8_t, kSecretSize> secret{};
  // "<kind>:<where>", best first. Of what was decoded they point into the bytes.
  std::vector<std::string_view> addresses;
};

inline constexpr size_t kWelcomeFixedSize = 8 + kHelloSize + 16 + 16 + kSecretSize;

// The same rules for what is to be sent and what was received: INVALID_ARGUMENT.
Status check_addresses(std::span<const std::string_view> addresses);

size_t welcome_size(const Welcome& welcome);
// Writes welcome_size(welcome) bytes and returns the byte after them. The caller has checked the
// addresses.
std::byte* encode_welcome(std::byte* out, const Welcome& welcome);
// INVALID_ARGUMENT, "not a welcome: ..."; FAILED_PRECONDITION: it is of another version.
Result<Welcome> decode_welcome(std::span<const std::byte> bytes);

}  // namespace tw::wire
