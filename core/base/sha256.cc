// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <string.h>

#include <algorithm>
#include <bit>

namespace tw {
namespace {

// The first 32 bits of the fractional parts of the square roots of the first 8 primes, and of the
// cube roots of the first 64.
constexpr std::array<uint32_t, 8> kInitial = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

uint32_t load_big_endian(const uint8_t* from) {
  return uint32_t{from[0]} << 24 | uint32_t{from[1]} << 16 | uint32_t{from[2]} << 8 | from[3];
}

template <class Integer>
void store_big_endian(uint8_t* to, Integer value) {
  for (size_t i = sizeof value; i-- > 0; value = static_cast<Integer>(value >> 8)) {
    to[i] = static_cast<uint8_t>(value);
  }
}

}  // namespace

Sha256::Sha256() : state_(kInitial) {}

Sha256::~Sha256() {
  explicit_bzero(state_.data(), sizeof state_);
  explicit_bzero(pending_.data(), sizeof pending_);
}

void Sha256::update(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const size_t held = length_ % kBlock;
    const size_t taken = std::min(bytes.size(), kBlock - held);
    std::copy_n(bytes.begin(), taken, pending_.begin() + held);
    length_ += taken;
    bytes = bytes.subspan(taken);
    if (held + taken == kBlock) compress(pending_.data());
  }
}

Sha256Digest Sha256::finish() {
  // A one bit, zeros up to the last eight bytes of a block, and the length in bits.
  constexpr size_t kLength = sizeof(uint64_t);
  std::array<uint8_t, kBlock + kLength> end{0x80};
  const size_t zeros = (2 * kBlock - 1 - kLength - length_ % kBlock) % kBlock;
  store_big_endian(end.data() + 1 + zeros, length_ * 8);
  update(std::span(end).first(1 + zeros + kLength));

  Sha256Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) store_big_endian(&digest[4 * i], state_[i]);
  return digest;
}

// Names are those of FIPS 180-4, section 6.2.2.
void Sha256::compress(const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t x = w[t - 15], y = w[t - 2];
    const uint32_t sigma0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3;
    const uint32_t sigma1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10;
    w[t] = w[t - 16] + sigma0 + w[t - 7] + sigma1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRound[t] + w[t];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
  explicit_bzero(w.data(), sizeof w);
}

Sha256Digest hmac_sha256(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  std::array<uint8_t, Sha256::kBlock> padded{};
  if (key.size() > padded.size()) {
    Sha256 hash;
    hash.update(key);
    const Sha256Digest shorter = hash.finish();
    std::copy(shorter.begin(), shorter.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  for (uint8_t& byte : padded) byte ^= 0x36;
  Sha256 inner;
  inner.update(padded);
  inner.update(message);
  const Sha256Digest digest = inner.finish();

  for (uint8_t& byte : padded) byte ^= 0x36 ^ 0x5c;
  Sha256 outer;
  outer.update(padded);
  outer.update(digest);
  explicit_bzero(padded.data(), padded.size());
  return outer.finish();
}

bool same_digest(const Sha256Digest& a, const Sha256Digest& b) {
  volatile uint8_t difference = 0;  // volatile: the compiler cannot stop at the first one
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace tw
