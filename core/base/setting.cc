// SPDX-License-Identifier: Apache-2.0
#include "base/setting.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/text.h"

namespace tw {
namespace {

using namespace setting;

constexpr uint64_t kGb = uint64_t{1} << 30;

// An empty variable counts as one that is not set.
std::string_view lookup(const char* variable) {
  const char* const value = variable ? std::getenv(variable) : nullptr;
  return value ? value : "";
}

std::optional<uint64_t> parse_number(std::string_view digits) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// "4096", "4K", "4kb", "4 KiB": K, M, G and T are powers of 1024 however they are spelled.
std::optional<uint64_t> parse_size(std::string_view value) {
  const size_t end_of_digits = value.find_first_not_of("0123456789");
  const auto number = parse_number(value.substr(0, end_of_digits));
  if (!number || end_of_digits == std::string_view::npos) return number;
  std::string unit;
  for (const char c : value.substr(end_of_digits)) {
    if (c != ' ') unit += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  uint64_t factor = 1;
  if (unit != "B") {
    const size_t power = unit.empty() ? std::string::npos : std::string("KMGT").find(unit[0]);
    const std::string rest = unit.empty() ? unit : unit.substr(1);
    if (power == std::string::npos || !(rest.empty() || rest == "B" || rest == "IB")) {
      return std::nullopt;
    }
    factor = uint64_t{1} << (10 * (power + 1));
  }
  if (*number > UINT64_MAX / factor) return UINT64_MAX;
  return *number * factor;
}

template <class Range>
bool fits(uint64_t number, const Range& range) {
  if (number < range.lowest || number > range.highest) return false;
  switch (range.shape) {
    case Shape::kAny:
      return true;
    case Shape::kPowerOfTwo:
      return (number & (number - 1)) == 0;
    case Shape::kMultipleOfGb:
      return number % kGb == 0;
  }
  return false;
}

std::string_view shape_text(Shape shape) {
  switch (shape) {
    case Shape::kAny:
      return "";
    case Shape::kPowerOfTwo:
      return ", a power of two";
    case Shape::kMultipleOfGb:
      return ", a multiple of 1073741824 (1 GB)";
  }
  return "";
}

std::string_view trimmed(std::string_view entry) {
  const size_t begin = entry.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return entry.substr(begin, entry.find_last_not_of(' ') - begin + 1);
}

// Nothing: it is not permitted.
std::optional<Value> parse(std::string_view value, const Size& size) {
  const auto number = parse_size(value);
  if (!number || !fits(*number, size)) return {};
  return *number;
}

std::optional<Value> parse(std::string_view value, const Whole& whole) {
  const auto number = parse_number(value);
  if (!number || !fits(*number, whole)) return {};
  return *number;
}

std::optional<Value> parse(std::string_view value, const Words& words) {
  std::string meant(value);
  if (words.read && !words.read(value, meant)) return {};
  return meant;
}

// Without looking at them.
std::vector<std::string> entries_of(std::string_view value) {
  std::vector<std::string> list;
  for (std::string_view rest = value;;) {
    const size_t comma = rest.find(',');
    list.emplace_back(trimmed(rest.substr(0, comma)));
    if (comma == std::string_view::npos) return list;
    rest.remove_prefix(comma + 1);
  }
}

std::optional<Value> parse(std::string_view value, const Entries& entries) {
  auto list = entries_of(value);
  if (!std::ranges::all_of(list, entries.entry)) return {};
  return list;
}

std::string range_text(const Size& size) {
  return text({size_text(size.lowest), " to ", size_text(size.highest), shape_text(size.shape)});
}
std::string range_text(const Whole& whole) {
  return text({whole.lowest, " to ", whole.highest, shape_text(whole.shape)});
}

// What a refusal tells to set.
std::string told(const Size& size) {
  return "bytes, with K, M, G or T (of 1024) if you like, from " + range_text(size);
}
std::string told(const Whole& whole) { return "a whole number from " + range_text(whole); }
std::string told(const Words& words) { return words.permitted; }
std::string told(const Entries& entries) { return entries.permitted; }

// What of a value is not permitted, where that is a part of it.
std::string part_of(std::string_view, const auto&) { return ""; }
std::string part_of(std::string_view value, const Entries& entries) {
  const auto list = entries_of(value);
  const auto wrong = std::ranges::find_if_not(list, entries.entry);
  return list.size() == 1 || wrong->empty() ? "" : text({" for ", quoted(*wrong)});
}

}  // namespace

Result<std::optional<Value>> read_variable(const char* variable, const Permitted& permitted) {
  const std::string_view value = lookup(variable);
  if (value.empty()) return std::optional<Value>{};
  return std::visit(
      [&](const auto& one) -> Result<std::optional<Value>> {
        if (auto given = parse(value, one)) return given;
        return Status{Code::kInvalidArgument,
                      text({variable, "=", quoted(value), " is not permitted", part_of(value, one),
                            ": set ", told(one)})};
      },
      permitted);
}

Result<std::optional<Value>> read_setting(const Setting& setting) {
  if (!lookup(setting.variable).empty()) return read_variable(setting.variable, setting.permitted);
  return read_variable(setting.alias, setting.alias_permitted);
}

bool is_set(const Setting& setting) {
  return !lookup(setting.variable).empty() || !lookup(setting.alias).empty();
}

std::string permitted_text(const Permitted& permitted) {
  return std::visit(
      [](const auto& one) -> std::string {
        if constexpr (requires { one.permitted; })
          return one.permitted;
        else
          return range_text(one);
      },
      permitted);
}

std::string value_text(const Value& value, const Permitted& permitted) {
  if (const auto* const number = std::get_if<uint64_t>(&value))
    return std::holds_alternative<Size>(permitted) ? size_text(*number)
                                                   : std::to_string(static_cast<int64_t>(*number));
  if (const auto* const word = std::get_if<std::string>(&value)) return *word;
  std::string all;
  for (const std::string& entry : std::get<std::vector<std::string>>(value))
    all += (all.empty() ? "" : ",") + entry;
  return all;
}

}  // namespace tw
