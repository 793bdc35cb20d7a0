// SPDX-License-Identifier: Apache-2.0
#include "base/streamed_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tw {
namespace {

// Into the second cache: stores that go around it hold up loads of what is not there.
[[maybe_unused]] constexpr size_t kAhead = 2048;

}  // namespace

void copy_streamed(std::byte* to, const std::byte* from, size_t size) {
#if defined(__x86_64__)
  const size_t head = std::min(size, -reinterpret_cast<uintptr_t>(to) % 64);
  if (head != 0) std::memcpy(to, from, head);
  for (to += head, from += head, size -= head; size >= 64; size -= 64, to += 64, from += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_T1);
    const auto* const in = reinterpret_cast<const __m128i*>(from);
    auto* const out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();
#endif
  if (size != 0) std::memcpy(to, from, size);
}

}  // namespace tw
