// SPDX-License-Identifier: Apache-2.0
#include "core.h"

#include <algorithm>
#include <cstring>

namespace tensorwire {

By by(absl::string_view transport) {
  return transport == "shm" ? By::kShm : transport == "verbs" ? By::kVerbs : By::kTcp;
}

std::string why_no_verbs(const tw_table& table) {
  std::string why;
  table.host(
      [](void* to, const tw_fact* host) {
        const tw_fact* found = host;
        for (const char* const name : {"transports", "verbs", "why_not"}) {
          const tw_fact* const end = found->facts + found->count;
          found = std::find_if(found->facts, end, [&](const tw_fact& fact) {
            return std::strcmp(fact.name, name) == 0;
          });
          if (found == end) return;
        }
        *static_cast<std::string*>(to) = found->text;
      },
      &why);
  return why;
}

}  // namespace tensorwire
