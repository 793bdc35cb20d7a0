// SPDX-License-Identifier: Apache-2.0
// Sentences for people, put together from words and numbers.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tw {

// A word or a number in a sentence. Only lives inside one call of text().
class Piece {
 public:
  Piece(std::string_view word) : word_(word) {}    // implicit
  Piece(const char* word) : word_(word) {}         // implicit
  Piece(const std::string& word) : word_(word) {}  // implicit
  template <std::integral N>
  Piece(N number)  // implicit
      : magnitude_(number < N{} ? 0 - static_cast<uint64_t>(number)
                                : static_cast<uint64_t>(number)),
        number_(true),
        negative_(number < N{}) {}

  void append_to(std::string& out) const;

 private:
  std::string_view word_;
  uint64_t magnitude_ = 0;
  bool number_ = false;
  bool negative_ = false;
};

std::string text(std::initializer_list<Piece> pieces);

// As a user would write it in a setting: with the largest of the units K, M, G and T that divides
// it.
std::string size_text(uint64_t bytes);

// `bytes` between single quotes, made safe for a log: control and non-ASCII bytes as \xNN, and cut
// after `limit` bytes, because a peer may have chosen them.
std::string quoted(std::string_view bytes, size_t limit = 64);

}  // namespace tw
