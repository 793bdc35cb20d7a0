// SPDX-License-Identifier: Apache-2.0
// A setting as a row of a table, which says all there is to say about it: who reads the environment
// looks there, and who tells people about settings.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/status.h"

namespace tw {
namespace setting {

// What a number has to be beside lying in its range.
enum class Shape : uint8_t { kAny, kPowerOfTwo, kMultipleOfGb };

// Bytes, with K, M, G or T (of 1024) if the user likes.
struct Size {
  uint64_t lowest, highest;
  Shape shape = Shape::kAny;
};

struct Whole {
  uint64_t lowest, highest;
  Shape shape = Shape::kAny;
  int64_t unit = 1;  // what one of the user's is in the field
};

struct Words {
  const char* permitted;  // for people
  // Puts what it means into `meant`. False: it is not permitted. Null: all is, and means itself.
  bool (*read)(std::string_view value, std::string& meant) = nullptr;
};

// With commas between.
struct Entries {
  const char* permitted;  // for people
  bool (*entry)(std::string_view entry);
};

}  // namespace setting

using Permitted = std::variant<setting::Size, setting::Whole, setting::Words, setting::Entries>;

struct Setting {
  const char* name;      // among the settings in force; empty: whoever needs it reads it anew
  const char* variable;  // of the environment
  Permitted permitted;
  const char* help;                // what for
  const char* fallback = nullptr;  // without the variable; null: what the field begins with
  // Another variable for the same, which counts where the first one is not set.
  const char* alias = nullptr;
  Permitted alias_permitted = setting::Words{};
};

// As the user gave it.
using Value = std::variant<uint64_t, std::string, std::vector<std::string>>;

// Nothing: it is not set, or is empty. INVALID_ARGUMENT names the variable, what it holds and what
// is permitted.
Result<std::optional<Value>> read_variable(const char* variable, const Permitted& permitted);
// The first of both names that is set wins.
Result<std::optional<Value>> read_setting(const Setting& setting);
bool is_set(const Setting& setting);
// "64K to 64M"; "auto, system, or a name".
std::string permitted_text(const Permitted& permitted);
// As a user would write it.
std::string value_text(const Value& value, const Permitted& permitted);

// What a setting is now, and what it is where nobody sets it. Null: nobody keeps it.
using VisitSetting =
    std::function<void(const Setting& setting, const Value* value, const Value* fallback)>;

// The row of a field of `S`.
template <class S>
struct SettingOf {
  std::variant<uint64_t S::*, int64_t S::*, int S::*, uint32_t S::*, uint16_t S::*, uint8_t S::*,
               std::string S::*, std::vector<std::string> S::*>
      field;
  Setting declared;
};

inline int64_t unit_of(const Setting& setting) {
  const setting::Whole* const whole = std::get_if<setting::Whole>(&setting.permitted);
  return whole ? whole->unit : 1;
}

// Reads what is set, in the order of the table, up to the first that is wrong.
template <class S, size_t kRows>
Status read_settings(const SettingOf<S> (&rows)[kRows], S& into) {
  for (const SettingOf<S>& row : rows) {
    const auto given = read_setting(row.declared);
    if (!given) return given.status();
    if (!*given) continue;
    std::visit(
        [&](auto field) {
          auto& to = into.*field;
          using To = std::remove_reference_t<decltype(to)>;
          if constexpr (std::integral<To>)
            to = static_cast<To>(static_cast<int64_t>(std::get<uint64_t>(**given)) *
                                 unit_of(row.declared));
          else
            to = std::get<To>(**given);
        },
        row.field);
  }
  return {};
}

template <class S>
Value value_of(const SettingOf<S>& row, const S& in_force) {
  return std::visit(
      [&](auto field) -> Value {
        const auto& from = in_force.*field;
        if constexpr (std::integral<std::remove_cvref_t<decltype(from)>>)
          return static_cast<uint64_t>(static_cast<int64_t>(from) / unit_of(row.declared));
        else
          return from;
      },
      row.field);
}

template <class S, size_t kRows>
void each_setting(const SettingOf<S> (&rows)[kRows], const S& in_force, const VisitSetting& visit) {
  const S untouched;
  for (const SettingOf<S>& row : rows) {
    const Value value = value_of(row, in_force), fallback = value_of(row, untouched);
    visit(row.declared, &value, &fallback);
  }
}

}  // namespace tw
