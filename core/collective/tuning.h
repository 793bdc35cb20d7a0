// SPDX-License-Identifier: Apache-2.0
// The table of a host, which `tensorwire tune collectives` measures: which way operations of groups
// go.
//
// Text, a line for each rule, and # before what people may read:
//
//   operation   fabric  ranks  bytes   way
//   all_reduce  memory  2      32768   one_step
//   all_reduce  memory  2      65536   stage
//   all_reduce  tcp     4      65536   recursive_doubling
//
// A fabric is the memory of a host, or the transport by which messages go. Of an operation, a
// fabric and a number of ranks, a rule holds up to so many bytes. Where there is none, or its way
// cannot be had, constants decide.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collective/collective_call.h"
#include "collective/tally.h"

namespace tw::collective {

// The fabric of ranks that read each other's stages.
inline constexpr std::string_view kMemoryFabric = "memory";

// Whether an operation over messages can go that way.
bool goes_by(CollectiveKind kind, Algorithm algorithm);

// The rules for one team.
class Ways {
 public:
  // Of an operation that moves so many bytes between a rank and another one; none: no rule.
  std::optional<Way> of(CollectiveKind kind, uint64_t bytes) const;

 private:
  friend class Tuning;
  struct Upto {
    uint64_t bytes;
    Way way;
  };
  std::array<std::vector<Upto>, kCollectiveKinds> upto_;  // ascending
};

class Tuning {
 public:
  // INVALID_ARGUMENT: the text says which line is wrong, and why.
  static Result<Tuning> parse(std::string_view table);
  // NOT_FOUND: there is no such file. INVALID_ARGUMENT, as above, or the file cannot be read.
  static Result<Tuning> read(const std::string& path);

  // `fabric`: kMemoryFabric, or the name of a transport; empty: no rule holds.
  Ways of(std::string_view fabric, int ranks) const;
  // Equal for tables that say the same; 0: there are no rules.
  uint64_t digest() const;

 private:
  struct Rule {
    CollectiveKind kind;
    std::string fabric;
    uint64_t ranks;
    uint64_t bytes;
    Way way;

    auto operator<=>(const Rule&) const = default;
  };
  static Result<Rule> rule_of(std::span<const std::string_view> words);
  std::vector<Rule> rules_;  // sorted
};

}  // namespace tw::collective
