// SPDX-License-Identifier: Apache-2.0
#include "message/thresholds.h"

#include <algorithm>

#include "base/text.h"

namespace tw {
namespace {

struct Row {
  const char* name;
  const setting::Size& sizes;
  size_t Profile::* in_profile;
  bool Settings::* given;
};
constexpr Row kRows[kThresholds] = {
    {"coalesce_bytes", kCoalesceSizes, &Profile::coalesce_bytes, &Settings::coalesce_given},
    {"eager_bytes", kEagerSizes, &Profile::eager_bytes, &Settings::eager_given},
    {"chunk_bytes", kChunkSizes, &Profile::chunk_bytes, &Settings::chunk_given},
};

const Row& row(Threshold threshold) { return kRows[static_cast<size_t>(threshold)]; }

}  // namespace

const char* name_of(Threshold threshold) { return row(threshold).name; }
const setting::Size& sizes_of(Threshold threshold) { return row(threshold).sizes; }

std::optional<Threshold> threshold_named(std::string_view name) {
  for (size_t i = 0; i < kThresholds; ++i)
    if (name == kRows[i].name) return static_cast<Threshold>(i);
  return std::nullopt;
}

const char* name_of(Source source) {
  switch (source) {
    case Source::kDefault:
      return "default";
    case Source::kTable:
      return "table";
    case Source::kOnline:
      return "online";
    case Source::kEnvironment:
      return "environment";
    case Source::kArgument:
      return "argument";
  }
  return "";
}

Result<Wanted> wanted_by(std::span<const int64_t, kThresholds> arguments) {
  Wanted wanted;
  for (size_t i = 0; i < kThresholds; ++i) {
    const int64_t bytes = arguments[i];
    if (bytes == -1) continue;
    const auto& [name, sizes, in_profile, given] = kRows[i];
    const auto size = static_cast<uint64_t>(bytes);
    if (bytes < 0 || size < sizes.lowest || size > sizes.highest)
      return Status{Code::kInvalidArgument, text({name, " is ", bytes, ", not a number from ",
                                                  sizes.lowest, " to ", sizes.highest})};
    wanted[i] = size;
  }
  return wanted;
}

Thresholds settle(Profile& profile, const Settings& settings, const Wanted& table,
                  const Wanted& arguments) {
  Thresholds thresholds;
  for (size_t i = 0; i < kThresholds; ++i) {
    size_t& bytes = profile.*kRows[i].in_profile;
    Source& source = thresholds.sources[i];
    if (arguments[i]) {
      bytes = *arguments[i];
      source = Source::kArgument;
    } else if (settings.*kRows[i].given) {
      source = Source::kEnvironment;
    } else if (table[i]) {
      bytes = *table[i];
      source = Source::kTable;
    }
  }
  const Source chunk = thresholds.sources[static_cast<size_t>(Threshold::kChunk)];
  if (chunk != Source::kArgument && chunk != Source::kEnvironment)
    profile.chunk_bytes = std::min(profile.chunk_bytes, profile.largest_chunk);
  for (size_t i = 0; i < kThresholds; ++i) thresholds.bytes[i] = profile.*kRows[i].in_profile;
  return thresholds;
}

}  // namespace tw
