// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <charconv>
#include <utility>

namespace tw {

void Piece::append_to(std::string& out) const {
  if (!number_) {
    out += word_;
    return;
  }
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, magnitude_).ptr;
  if (negative_) out += '-';
  out.append(digits, end);
}

std::string text(std::initializer_list<Piece> pieces) {
  std::string out;
  for (const Piece& piece : pieces) piece.append_to(out);
  return out;
}

std::string size_text(uint64_t bytes) {
  for (const auto& [shift, suffix] : {std::pair{40, "T"}, {30, "G"}, {20, "M"}, {10, "K"}}) {
    const uint64_t unit = uint64_t{1} << shift;
    if (bytes != 0 && bytes % unit == 0) return text({bytes / unit, suffix});
  }
  return text({bytes});
}

std::string quoted(std::string_view bytes, size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : bytes.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\'' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  out += bytes.size() > limit ? "...'" : "'";
  return out;
}

}  // namespace tw
