// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <algorithm>
#include <list>
#include <string>

#include "absl/strings/string_view.h"
#include "transports.h"

namespace tensorwire {
namespace {

Settings g_settings;

// OK: its value is in `value`, empty where it is not set.
absl::Status read(const tw_table& table, const char* variable, std::string* value) {
  char found[64];
  tw_status status{};
  if (table.read_setting(variable, found, sizeof found, &status) != TW_OK)
    return absl::InvalidArgumentError(status.details);
  *value = found;
  return absl::OkStatus();
}

struct Permitted {
  std::list<Transport>& transports;
  std::string required;  // empty: any
  bool grpc = true;
};

void note_policy(void* context, const tw_policy* policy, const tw_refusal* refusals, size_t count) {
  auto* const out = static_cast<Permitted*>(context);
  for (Transport& each : out->transports)
    each.permitted = std::none_of(refusals, refusals + count, [&each](const tw_refusal& refusal) {
      return each.name == refusal.way;
    });
  const absl::string_view required = policy->required ? policy->required : "";
  if (required != "grpc") out->required = std::string(required);
  out->grpc = std::none_of(policy->forbidden, policy->forbidden + policy->count,
                           [](absl::string_view name) { return name == "grpc"; });
}

}  // namespace

absl::Status read_settings(const tw_table& table) {
  Settings read_now;
  std::string value;
  if (absl::Status status = read(table, "TF_RDMA_ENABLED", &value); !status.ok()) return status;
  read_now.enabled = value != "false";
  Permitted permitted{transports(table)};
  tw_status why{};
  if (table.choose_policy(nullptr, nullptr, note_policy, &permitted, &why) != TW_OK)
    return absl::InvalidArgumentError(why.details);
  if (!permitted.grpc)
    return absl::InvalidArgumentError(
        "TENSORWIRE_FORBID may leave out any transport but grpc: TensorFlow's own gRPC cannot be "
        "done without");
  read_now.required = permitted.required;
  if (std::none_of(permitted.transports.begin(), permitted.transports.end(),
                   [](const Transport& each) { return each.permitted; }))
    read_now.enabled = false;
  if (absl::Status status = read(table, "TENSORWIRE_TF_ARENA", &value); !status.ok()) return status;
  read_now.arena = value != "off";
  read_now.traced = value == "traced";
  if (absl::Status status = read(table, "TENSORWIRE_TF_COLLECTIVES", &value); !status.ok())
    return status;
  read_now.groups = value != "ring";
  if (absl::Status status = read(table, "TENSORWIRE_TF_PLAN", &value); !status.ok()) return status;
  read_now.plans = value == "on";
  g_settings = read_now;
  return absl::OkStatus();
}

const Settings& settings() { return g_settings; }

}  // namespace tensorwire
