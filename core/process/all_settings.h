// SPDX-License-Identifier: Apache-2.0
// Every setting that there is: of all links, of each transport, and those that whoever needs them
// reads anew.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fact.h"
#include "base/settings.h"
#include "transport/kind.h"

namespace tw {

// The way of calls that is no transport: stock gRPC.
inline constexpr std::string_view kStock = "grpc";
// What users call the ways of calls, best first; kStock comes last.
std::vector<std::string> known_ways(std::span<const std::unique_ptr<Kind>> kinds);
// Those kinds that are among them.
std::vector<const Kind*> chosen_kinds(std::span<const std::unique_ptr<Kind>> kinds);

// Where ranks of other hosts reach this one, and where they do by default.
inline constexpr const char* kGroupHost = "TENSORWIRE_GROUP_HOST";
inline constexpr const char* kLoopback = "127.0.0.1";

// The kinds as they are without any setting, which need no runtime: for what is declared, and where
// a setting is wrong. They make no links.
std::span<const std::unique_ptr<Kind>> usual_kinds();

void each_setting(const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds,
                  const VisitSetting& visit);

// A variable of the environment, for people.
struct Variable {
  const char* name;
  const Setting& setting;
  bool alias;            // another name of the setting's own variable
  std::string fallback;  // what it is where nobody sets it; empty for another name
  std::string permitted;
};
// All that there are, each setting's own one before its other name.
void each_variable(std::span<const std::unique_ptr<Kind>> kinds,
                   const std::function<void(const Variable& variable)>& visit);

// What is in force, by the names of the settings.
Facts settings_in_force(const Settings& settings, std::span<const std::unique_ptr<Kind>> kinds);

// What a variable of the environment holds now, as it is meant; empty: it is not set.
// INVALID_ARGUMENT: it is wrong. NOT_FOUND: it is no setting.
Result<std::string> read_anew(std::span<const std::unique_ptr<Kind>> kinds,
                              std::string_view variable);

}  // namespace tw
