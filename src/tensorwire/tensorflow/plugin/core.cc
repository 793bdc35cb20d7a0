// SPDX-License-Identifier: Apache-2.0
#include "core.h"

#include <cstring>

namespace tensorwire {

By by(absl::string_view transport) {
  return transport == "shm" ? By::kShm : transport == "verbs" ? By::kVerbs : By::kTcp;
}

std::string why_no_verbs(const tw_table& table) {
  std::string why;
  table.host(
      [](void* to, const char* name, const char* value) {
        if (std::strcmp(name, "verbs") == 0) *static_cast<std::string*>(to) = value;
      },
      &why);
  return why;
}

}  // namespace tensorwire
