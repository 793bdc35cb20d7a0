// SPDX-License-Identifier: Apache-2.0
// Hello: who a process is and what it speaks, exchanged over the bootstrap before any connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace tw::wire {

using InstanceId = std::array<uint8_t, 16>;

inline constexpr size_t kHelloSize = 96;
inline constexpr std::array<char, 8> kHelloMagic = {'T', 'N', 'S', 'R', 'W', 'I', 'R', 'E'};
inline constexpr uint16_t kLowestVersion = 1;
inline constexpr uint16_t kHighestVersion = 1;
inline constexpr uint64_t kOneSided = 1;  // feature: REGION, REGION_GONE, OPERATION and OUTCOME
inline constexpr uint64_t kTagged = 2;    // feature: messages on streams of kTaggedStreams
// Feature: regions whose memory is handed over beside their REGION, where a transport can do that.
inline constexpr uint64_t kMapped = 4;
inline constexpr uint64_t kMappedBlocks = 8;  // feature: likewise regions that lie in the arena
inline constexpr uint64_t kReturned = 16;     // feature: RETURN segments
// Bits that this build knows.
inline constexpr uint64_t kFeatures = kOneSided | kTagged | kMapped | kMappedBlocks | kReturned;
inline constexpr uint32_t kOverflowUid = 65'534;
inline constexpr uint64_t kDefaultStreamWindow = 16 << 20;
inline constexpr uint64_t kMaxStreamWindow = uint64_t{1} << 62;

struct Hello {
  std::array<char, 8> magic = kHelloMagic;
  uint16_t lowest_version = kLowestVersion;
  uint16_t highest_version = kHighestVersion;
  uint32_t zero = 0;
  uint64_t features = kFeatures;      // offered; unknown bits are ignored
  uint64_t required = 0;              // a subset of features that the other end must know
  InstanceId instance{};              // of the process's runtime
  std::array<uint8_t, 16> boot_id{};  // of the kernel; zero when unknown
  uint64_t pid_namespace = 0;         // inode; zero when unknown
  uint32_t pid = 0;
  uint32_t uid = 0;
  // Credit with which the peer begins each stream towards this process: 1 to kMaxStreamWindow
  // bytes.
  uint64_t stream_window = kDefaultStreamWindow;
  std::array<uint8_t, 8> reserved{};  // sent as zero, ignored

  bool operator==(const Hello&) const = default;
};

// This process, as base/identity.h finds it now.
Hello local_hello(const InstanceId& instance, uint64_t stream_window = kDefaultStreamWindow);

void encode_hello(std::span<std::byte, kHelloSize> out, const Hello& hello);
// INVALID_ARGUMENT when `bytes` are no Hello. Versions and features are judged by the two below.
Result<Hello> decode_hello(std::span<const std::byte> bytes);

// The highest version that both speak. FAILED_PRECONDITION names both ranges.
Result<uint16_t> common_version(const Hello& ours, const Hello& theirs);
// FAILED_PRECONDITION names a feature that one end requires and the other does not offer.
Status check_features(const Hello& ours, const Hello& theirs);

// Same kernel boot: shared memory can work, whatever namespaces the two live in.
bool same_host(const Hello& a, const Hello& b);
// Same kernel boot and pid namespace: what one calls its pid is the same process to the other.
bool same_pids(const Hello& a, const Hello& b);
// Same user, by what the two say of themselves: good for choosing a transport, never for trust. The
// overflow uid stands for "some user that this namespace cannot name", hence equals nobody.
bool same_user(const Hello& a, const Hello& b);

}  // namespace tw::wire
