// SPDX-License-Identifier: Apache-2.0
// Reading and writing of plain little-endian values in byte buffers, and sums that cannot overflow.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "base/status.h"
#include "base/text.h"

namespace tw::wire {

// The structs of this layer are copied to and from the wire as they are.
static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

template <class T>
T load(const std::byte* from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Returns the byte after what was written.
template <class T>
std::byte* store(std::byte* to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

inline std::byte* store_bytes(std::byte* to, const void* from, size_t length) {
  if (length != 0) std::memcpy(to, from, length);
  return to + length;
}

// Adds `more` to `sum` unless the result would exceed `limit`. Requires sum <= limit.
[[nodiscard]] inline bool add_within(uint64_t& sum, uint64_t more, uint64_t limit) {
  if (more > limit - sum) return false;
  sum += more;
  return true;
}

// The peer broke the protocol and the link cannot go on: INTERNAL, "protocol error: <sentence>".
Status protocol_error(std::initializer_list<Piece> sentence);

// gRPC knows no status code above this one.
inline constexpr uint32_t kHighestCode = static_cast<uint32_t>(Code::kUnauthenticated);

// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view bytes);
// At most `limit` bytes of well-formed text, never ending inside a character.
std::string_view cut_utf8(std::string_view bytes, size_t limit);

}  // namespace tw::wire
