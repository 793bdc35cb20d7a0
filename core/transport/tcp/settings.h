// SPDX-License-Identifier: Apache-2.0
// What users can set for TCP beside what all transports share.
#pragma once

#include "base/settings.h"

namespace tw::tcp {

struct Settings : tw::Settings {
  std::string congestion = "auto";
};

// As the kernel spells them: at most 15 characters.
inline bool read_congestion(std::string_view value, std::string&) {
  return value.size() <= 15 &&
         value.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == value.npos;
}

inline constexpr SettingOf<Settings> kSettings[] = {
    {&Settings::congestion,
     {"tcp_congestion", "TENSORWIRE_TCP_CONGESTION",
      setting::Words{"auto, system, or a name of net.ipv4.tcp_available_congestion_control",
                     read_congestion},
      "congestion control of TCP links within a host. auto: cubic or reno; system: the host's "
      "default"}},
};

}  // namespace tw::tcp
