// SPDX-License-Identifier: Apache-2.0
// The sizes at which messages change their protocol, and who has said them for a link. They stay as
// they are while it lives, but for what is copied along: calls may find a better value for that
// (message/threshold_trial.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/setting.h"
#include "base/settings.h"
#include "base/status.h"
#include "transport/transport.h"

namespace tw {

enum class Threshold : uint8_t { kCoalesce, kEager, kChunk };
inline constexpr size_t kThresholds = 3;
const char* name_of(Threshold threshold);
// What it may be.
const setting::Size& sizes_of(Threshold threshold);
std::optional<Threshold> threshold_named(std::string_view name);

// Whose word counts, the last one most.
enum class Source : uint8_t { kDefault, kTable, kOnline, kEnvironment, kArgument };
const char* name_of(Source source);

// What one of them says; empty: it leaves the threshold to the others.
using Wanted = std::array<std::optional<size_t>, kThresholds>;

// What a program asks for, in their order; -1: it leaves the threshold to the others.
// INVALID_ARGUMENT.
Result<Wanted> wanted_by(std::span<const int64_t, kThresholds> arguments);

// Of one link.
struct Thresholds {
  std::array<size_t, kThresholds> bytes{};
  std::array<Source, kThresholds> sources{};
};

// Puts into `profile`, which has what the settings say, what counts more than that.
Thresholds settle(Profile& profile, const Settings& settings, const Wanted& table,
                  const Wanted& arguments);

}  // namespace tw
