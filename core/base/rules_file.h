// SPDX-License-Identifier: Apache-2.0
// Files of rules, which `tensorwire tune` writes: a line for each rule, words with blanks between,
// and # before what people may read.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/text.h"

namespace tw::rules {

inline constexpr size_t kMostBytes = 64 << 10;  // of a file

// Where this user's file of that name is; empty: nowhere.
std::string path_in_cache(std::string_view name);
// NOT_FOUND: there is no such file. INVALID_ARGUMENT: it cannot be read.
Result<std::string> read(const std::string& path);

// The words of a rule. Its status says what is wrong with them.
using Visit = std::function<Status(std::span<const std::string_view> words)>;
// Visits each rule. INVALID_ARGUMENT: the text says which line is wrong, and why; a rule that has
// not as many words as `form`, which names them, is.
Status each(std::string_view text, std::span<const std::string_view> form, const Visit& visit);

std::optional<uint64_t> number(std::string_view word);
Status wrong(std::initializer_list<Piece> pieces);

}  // namespace tw::rules
