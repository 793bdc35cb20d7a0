// SPDX-License-Identifier: Apache-2.0
// What is told about a host, for people and programs: named values in a tree.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tw {

struct Fact;
using Facts = std::vector<Fact>;

struct Fact {
  enum class Kind : uint8_t { kNumber, kText, kRecord, kList };

  Fact(std::string n, int64_t value) : name(std::move(n)), number(value) {}
  Fact(std::string n, std::string value)
      : name(std::move(n)), kind(Kind::kText), text(std::move(value)) {}
  // kRecord; kList, whose members have no names.
  Fact(std::string n, Kind k, Facts within)
      : name(std::move(n)), kind(k), facts(std::move(within)) {}

  std::string name;
  Kind kind = Kind::kNumber;
  int64_t number = 0;
  std::string text;
  Facts facts;
};

}  // namespace tw
