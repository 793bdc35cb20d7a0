// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/facts.h"

#include <algorithm>

#include "base/text.h"
#include "transport/verbs/choice.h"
#include "transport/verbs/device.h"
#include "transport/verbs/library.h"

namespace tw::verbs {
namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

Facts none(std::string why) { return {{"verbs", std::move(why)}}; }

void add_port(Facts& facts, const Device& device, const Port& port, const Rail* rail,
              const Settings& settings) {
  const std::string prefix = text({"verbs.", device.name, ":", port.number, "."});
  const auto add = [&](std::string_view name, std::string value) {
    facts.emplace_back(prefix + std::string(name), std::move(value));
  };
  const auto gid = choose_gid(device, port, settings);
  add("state", port.state);
  add("layer", std::string(name(port.layer)));
  add("lid", std::to_string(port.lid));
  add("mtu", std::to_string(port.mtu));
  add("megabits", std::to_string(port.megabits));
  add("numa_node", std::to_string(device.numa_node));
  add("chosen_gid", gid ? std::to_string(gid->index) : "-1");
  add("unusable", device.unusable);
  add("used", rail ? "1" : "0");
  for (const Gid& each : port.gids)
    add(text({"gid.", each.index}), text({each.to_string(), " ", name(each.type)}));
}

}  // namespace

Facts facts(const Library& library, const Settings& settings) {
  std::vector<std::string> skipped;
  const auto devices = list_devices(library, &skipped);
  if (!devices) return none(devices.status().details());
  const auto rails =
      choose_rails(*devices, settings, [&](int node) { return numa_distance(library, node); });
  std::string why = rails ? "" : rails.status().details();
  if (!rails)
    for (const std::string& reason : skipped) why += "; " + reason;
  Facts facts = none(std::move(why));
  for (const Device& device : *devices) {
    for (const Port& port : device.ports) {
      const Rail* rail = nullptr;
      if (rails)
        for (const Rail& each : *rails)
          if (each.device == device.name && each.port.number == port.number) rail = &each;
      add_port(facts, device, port, rail, settings);
    }
  }
  return facts;
}

}  // namespace tw::verbs
