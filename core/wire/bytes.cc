// SPDX-License-Identifier: Apache-2.0
#include "wire/bytes.h"

namespace tw::wire {

Status protocol_error(std::initializer_list<Piece> sentence) {
  return {Code::kInternal, "protocol error: " + text(sentence)};
}

bool is_utf8(std::string_view bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const end = at + bytes.size();
  while (at != end) {
    const unsigned char lead = *at++;
    if (lead < 0x80) continue;
    // The second byte carries all restrictions that go beyond "10xxxxxx".
    unsigned char lowest = 0x80;
    unsigned char highest = 0xbf;
    int follow = 0;
    if (lead >= 0xc2 && lead <= 0xdf) {
      follow = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      follow = 2;
      if (lead == 0xe0) lowest = 0xa0;   // overlong
      if (lead == 0xed) highest = 0x9f;  // surrogates
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      follow = 3;
      if (lead == 0xf0) lowest = 0x90;   // overlong
      if (lead == 0xf4) highest = 0x8f;  // above U+10FFFF
    } else {
      return false;
    }
    for (; follow > 0; --follow) {
      if (at == end || *at < lowest || *at > highest) return false;
      ++at;
      lowest = 0x80;
      highest = 0xbf;
    }
  }
  return true;
}

std::string_view cut_utf8(std::string_view bytes, size_t limit) {
  if (bytes.size() <= limit) return bytes;
  while (limit != 0 && (static_cast<unsigned char>(bytes[limit]) & 0xc0) == 0x80) --limit;
  return bytes.substr(0, limit);
}

}  // namespace tw::wire
