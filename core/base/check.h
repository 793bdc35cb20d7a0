// SPDX-License-Identifier: Apache-2.0
// One thing that was looked at on a host, as people are told of it.
#pragma once

#include <string>
#include <utility>

#include "base/fact.h"

namespace tw {

// kWarn: it works, but slower or with less room.
enum class Severity : uint8_t { kOk, kWarn, kFail };

// meaning: why it matters. mend: the command that mends it.
inline Fact check(std::string subject, std::string value, Severity verdict, std::string meaning,
                  std::string mend = "") {
  constexpr const char* kNames[] = {"ok", "warn", "fail"};
  return {"",
          Fact::Kind::kRecord,
          {{"subject", std::move(subject)},
           {"value", std::move(value)},
           {"verdict", std::string(kNames[static_cast<int>(verdict)])},
           {"meaning", std::move(meaning)},
           {"mend", std::move(mend)}}};
}

}  // namespace tw
