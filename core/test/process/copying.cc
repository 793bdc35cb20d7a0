// SPDX-License-Identifier: Apache-2.0
#include "process/copying.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "process/runtime.h"
#include "test/process.h"

namespace tw::test {
namespace {

std::vector<std::byte> bytes_of(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 1664525 + 1013904223;
    bytes[i] = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

// From the smallest to beyond the size from which the assistant takes part.
const std::vector<size_t> kSizes = {
    0, 1, 4096, Copier::kShared - 1, Copier::kShared, 2 * Copier::kShared + 3};

bool copies_all() {
  for (const size_t size : kSizes) {
    const std::vector<std::byte> from = bytes_of(size, 7);
    std::vector<std::byte> to(size + 1, std::byte{0x5a});
    copy_bytes(to.data(), from.data(), size);
    if (to[size] != std::byte{0x5a} || !std::equal(from.begin(), from.end(), to.begin()))
      return false;
  }
  return true;
}

TEST_CASE("copying: every byte arrives, and none beyond") {
  REQUIRE(Runtime::get().ok());
  CHECK(copies_all());
  copy_bytes(nullptr, nullptr, 0);
}

TEST_CASE("copying: several at once, of which none is large alone") {
  std::vector<std::vector<std::byte>> from, to;
  std::vector<Copier::Copy> copies;
  for (size_t size = 0; size < Copier::kShared; size += Copier::kShared / 7) {
    from.push_back(bytes_of(size, static_cast<uint32_t>(size)));
    to.emplace_back(size + 1, std::byte{0x5a});
  }
  for (size_t i = 0; i < from.size(); ++i)
    copies.push_back({to[i].data(), from[i].data(), from[i].size()});
  copies.push_back({nullptr, nullptr, 0});
  copy_all(copies);
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(std::equal(from[i].begin(), from[i].end(), to[i].begin()));
    CHECK(to[i].back() == std::byte{0x5a});
  }
  copy_all({});
}

TEST_CASE("copying: a payload is its segments, one behind the other") {
  InMessage message;
  std::vector<std::vector<std::byte>> parts;
  std::vector<std::byte> all;
  for (const size_t size : kSizes) {
    parts.push_back(bytes_of(size, static_cast<uint32_t>(parts.size())));
    all.insert(all.end(), parts.back().begin(), parts.back().end());
    message.payload_bytes += size;
  }
  for (const auto& part : parts)
    message.segments.push_back({part.empty() ? nullptr : part.data(), part.size(), {}});
  // Not touched before.
  const std::unique_ptr<std::byte[]> to(new std::byte[all.size() + 1]);
  to[all.size()] = std::byte{0x5a};
  copy_payload(to.get(), message);
  CHECK(std::equal(all.begin(), all.end(), to.get()));
  CHECK(to[all.size()] == std::byte{0x5a});
  copy_payload(nullptr, InMessage{});
}

TEST_CASE("helper: copies without a runtime" * doctest::skip()) {
  const bool none = !Runtime::get().ok();
  write_thing(kToTest, none && copies_all());
}

TEST_CASE("copying: it takes no runtime") {
  Helper helper("copies without a runtime", "TENSORWIRE_BUFFER_BYTES=nonsense");
  CHECK(helper.hear<bool>());
}

}  // namespace
}  // namespace tw::test
