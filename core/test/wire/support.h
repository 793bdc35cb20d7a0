// SPDX-License-Identifier: Apache-2.0
// Random bytes from fixed seeds and shorthands for the tests of this folder and of link/.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tw::test {

using Bytes = std::vector<std::byte>;

inline Bytes as_bytes(std::string_view text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

inline Bytes hex(std::string_view digits) {
  Bytes out;
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string packed;
  std::copy_if(digits.begin(), digits.end(), std::back_inserter(packed),
               [](char c) { return c != ' ' && c != '\n'; });
  for (size_t i = 0; i + 1 < packed.size(); i += 2) {
    out.push_back(static_cast<std::byte>(value(packed[i]) << 4 | value(packed[i + 1])));
  }
  return out;
}

inline std::string digits(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) out += "0123456789abcdef"[digit];
  }
  return out;
}

// Writes `value` over the bytes at `offset`.
template <class T>
void poke(Bytes& bytes, size_t offset, T value) {
  REQUIRE(offset + sizeof value <= bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t number() { return engine_(); }
  uint64_t up_to(uint64_t highest) {
    return std::uniform_int_distribution<uint64_t>(0, highest)(engine_);
  }
  bool chance(int percent) { return up_to(99) < static_cast<uint64_t>(percent); }
  Bytes bytes(size_t length) {
    Bytes out(length);
    for (auto& byte : out) byte = static_cast<std::byte>(engine_());
    return out;
  }
  std::string text(size_t length, std::string_view alphabet) {
    std::string out(length, ' ');
    for (auto& c : out) c = alphabet[up_to(alphabet.size() - 1)];
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

// The status has this code and its sentence holds all of these words.
inline void check_says(const Status& status, Code code,
                       std::initializer_list<std::string_view> words) {
  CHECK(status.code() == code);
  for (const auto word : words) {
    INFO("'" << status.details() << "' should say '" << std::string(word) << "'");
    CHECK(status.details().find(word) != std::string::npos);
  }
}

}  // namespace tw::test
