// SPDX-License-Identifier: Apache-2.0
#include "transports.h"

#include "core.h"

namespace tensorwire {

std::list<Transport>& transports(const tw_table& table) {
  static auto* const all = [&table] {
    auto* const found = new std::list<Transport>;
    table.each_transport(
        [](void* to, const tw_transport* each) {
          static_cast<std::list<Transport>*>(to)->emplace_back(*each);
        },
        found);
    return found;
  }();
  return *all;
}

std::list<Transport>& transports() { return transports(core()); }

Transport* find_transport(absl::string_view name) {
  for (Transport& each : transports())
    if (each.name == name) return &each;
  return nullptr;
}

}  // namespace tensorwire
