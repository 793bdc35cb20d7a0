// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/facts.h"

#include <algorithm>

#include "base/text.h"
#include "transport/verbs/choice.h"
#include "transport/verbs/device.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

Fact fact_of(const Device& device, const DevicePort& port, const Rail* rail,
             const Settings& settings) {
  const auto chosen = choose_gid(device, port, settings);
  Facts gids;
  for (const Gid& gid : port.gids)
    gids.emplace_back("", Fact::Kind::kRecord,
                      Facts{{"index", gid.index},
                            {"address", gid.to_string()},
                            {"kind", std::string(name(gid.type))}});
  return {"",
          Fact::Kind::kRecord,
          {{"name", text({device.name, ":", port.number})},
           {"state", port.state},
           {"layer", std::string(name(port.layer))},
           {"lid", port.lid},
           {"mtu", port.mtu},
           {"megabits", static_cast<int64_t>(port.megabits)},
           {"numa_node", device.numa_node},
           {"chosen_gid", chosen ? chosen->index : -1},
           {"unusable", device.unusable},
           {"used", rail != nullptr},
           {"gids", Fact::Kind::kList, std::move(gids)}}};
}

}  // namespace

Facts facts(const Library& library, const Settings& settings) {
  std::vector<std::string> skipped;
  const auto devices = list_devices(library, &skipped);
  if (!devices) return {{"why_not", devices.status().details()}};
  const auto rails =
      choose_rails(*devices, settings, [&](int node) { return numa_distance(library, node); });
  std::string why = rails ? "" : rails.status().details();
  if (!rails)
    for (const std::string& reason : skipped) why += "; " + reason;
  Facts ports;
  for (const Device& device : *devices) {
    for (const DevicePort& port : device.ports) {
      const Rail* rail = nullptr;
      if (rails)
        for (const Rail& each : *rails)
          if (each.device == device.name && each.port.number == port.number) rail = &each;
      ports.push_back(fact_of(device, port, rail, settings));
    }
  }
  return {{"why_not", std::move(why)}, {"ports", Fact::Kind::kList, std::move(ports)}};
}

}  // namespace tw::verbs
