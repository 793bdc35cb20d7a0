// SPDX-License-Identifier: Apache-2.0
// What a number that the runtime keeps means. It is declared once, where it is counted; statistics,
// metrics and the pages that list them are made from that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

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

// A number that one thread at a time counts, and others read meanwhile.
class LiveCount {
 public:
  LiveCount() = default;
  LiveCount(const LiveCount& other) : LiveCount(static_cast<uint64_t>(other)) {}
  LiveCount& operator=(const LiveCount& other) {
    value_.store(other, std::memory_order_relaxed);
    return *this;
  }
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }  // implicit
  void operator+=(uint64_t more) { value_.store(*this + more, std::memory_order_relaxed); }
  void operator++() { *this += 1; }

 private:
  explicit LiveCount(uint64_t value) : value_(value) {}
  std::atomic<uint64_t> value_{0};
};
static_assert(sizeof(LiveCount) == sizeof(uint64_t));

// A row of the table of `Counts`, which has such numbers only.
template <class Counts, class Number = uint64_t>
struct Counter {
  Number Counts::* field;
  Declared declared;
};

// Whether each number has its row.
template <class Counts, class Number, size_t kRows>
constexpr bool complete(const Counter<Counts, Number> (&rows)[kRows]) {
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < i; ++j)
      if (rows[i].field == rows[j].field) return false;
  return kRows * sizeof(uint64_t) == sizeof(Counts);
}

// visit(declared, value), in the order of the table.
template <class Counts, class Number, size_t kRows, class Visit>
void each_counter(const Counter<Counts, Number> (&rows)[kRows],
                  const std::type_identity_t<Counts>& counts, Visit&& visit) {
  for (const auto& row : rows) visit(row.declared, static_cast<uint64_t>(counts.*row.field));
}

}  // namespace tw
