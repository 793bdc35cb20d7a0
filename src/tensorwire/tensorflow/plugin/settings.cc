// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core.h"

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
  Settings* to;
  bool grpc = true;
};

void note_policy(void* context, const tw_policy* policy) {
  auto* const out = static_cast<Permitted*>(context);
  const absl::string_view required = policy->required ? policy->required : "";
  for (const auto& [name, permitted] : {std::pair<absl::string_view, bool*>{"shm", &out->to->shm},
                                        {"verbs", &out->to->verbs},
                                        {"tcp", &out->to->tcp},
                                        {"grpc", &out->grpc}}) {
    for (size_t i = 0; i < policy->count; ++i) *permitted &= policy->forbidden[i] != name;
    if (permitted != &out->grpc) *permitted &= required.empty() || required == name;
  }
  if (required != "grpc") out->to->required = std::string(required);
}

}  // namespace

absl::Status read_settings(const tw_table& table) {
  Settings read_now;
  std::string value;
  if (absl::Status status = read(table, "TF_RDMA_ENABLED", &value); !status.ok()) return status;
  read_now.enabled = value != "false";
  Permitted permitted{&read_now};
  tw_status why{};
  if (table.choose_policy(nullptr, nullptr, note_policy, &permitted, &why) != TW_OK)
    return absl::InvalidArgumentError(why.details);
  if (!permitted.grpc)
    return absl::InvalidArgumentError(
        "TENSORWIRE_FORBID may leave out shm, verbs and tcp: TensorFlow's own gRPC cannot be done "
        "without");
  if (!read_now.shm && !read_now.verbs && !read_now.tcp) read_now.enabled = false;
  if (absl::Status status = read(table, "TENSORWIRE_TF_ARENA", &value); !status.ok()) return status;
  read_now.arena = value != "off";
  read_now.traced = value == "traced";
  g_settings = read_now;
  return absl::OkStatus();
}

const Settings& settings() { return g_settings; }

}  // namespace tensorwire
