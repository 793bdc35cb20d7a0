// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104), for the proofs of a handshake.
//
// Both take the same time for all inputs of one length: no branch and no address depends on what
// is hashed. What they held is wiped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tw {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  static constexpr size_t kBlock = 64;

  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();

  void update(std::span<const uint8_t> bytes);
  // Once, and last.
  Sha256Digest finish();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, kBlock> pending_{};  // the beginning of the next block
  uint64_t length_ = 0;                    // bytes so far
};

Sha256Digest hmac_sha256(std::span<const uint8_t> key, std::span<const uint8_t> message);

// In constant time.
bool same_digest(const Sha256Digest& a, const Sha256Digest& b);

}  // namespace tw
