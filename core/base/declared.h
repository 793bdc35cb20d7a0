// SPDX-License-Identifier: Apache-2.0
// What a number that the runtime keeps means. It is declared once, where it is counted; statistics,
// metrics and the pages that list them are made from that.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tw {

// What people see. Numbers that differ in their labels alone share one.
struct Metric {
  enum class Kind : uint8_t { kCounter, kGauge };

  const char* name;  // ends with the unit where that is bytes
  const char* unit;
  Kind kind;
  const char* help;  // a sentence
};

struct Declared {
  struct Label {
    const char* name = nullptr;
    const char* value = nullptr;
  };

  const char* name;  // in statistics
  Metric metric;
  Label labels[2] = {};
  bool by_size = false;  // the metric has one for each class of sizes, of which this is the sum
};

// A row of the table of `Counts`, which has numbers only.
template <class Counts>
struct Counter {
  uint64_t Counts::* field;
  Declared declared;
};

// Whether each number has its row.
template <class Counts, size_t kRows>
constexpr bool complete(const Counter<Counts> (&rows)[kRows]) {
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < i; ++j)
      if (rows[i].field == rows[j].field) return false;
  return kRows * sizeof(uint64_t) == sizeof(Counts);
}

// visit(declared, value), in the order of the table.
template <class Counts, size_t kRows, class Visit>
void each_counter(const Counter<Counts> (&rows)[kRows], const Counts& counts, Visit&& visit) {
  for (const Counter<Counts>& row : rows) visit(row.declared, counts.*row.field);
}

}  // namespace tw
