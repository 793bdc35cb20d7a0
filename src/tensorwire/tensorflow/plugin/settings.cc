// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tensorwire {
namespace {

Settings g_settings;

constexpr std::pair<absl::string_view, bool Settings::*> kTransports[] = {
    {"shm", &Settings::shm}, {"verbs", &Settings::verbs}, {"tcp", &Settings::tcp}};

// Whether there is such a transport; `permitted` says of each whether it may still be used.
bool narrow(Settings* to, absl::string_view name, bool (*permitted)(bool is_it)) {
  bool known = false;
  for (const auto& [transport, may] : kTransports) {
    known |= transport == name;
    to->*may &= permitted(transport == name);
  }
  return known;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

absl::Status wrong(const char* name, absl::string_view value, absl::string_view permitted) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", value, " is not permitted: set it to ", permitted));
}

}  // namespace

absl::Status read_settings() {
  Settings read;
  if (const std::string enabled = absl::AsciiStrToLower(variable("TF_RDMA_ENABLED"));
      !enabled.empty()) {
    if (enabled != "true" && enabled != "false" && enabled != "1" && enabled != "0")
      return wrong("TF_RDMA_ENABLED", enabled, "true or false");
    read.enabled = enabled == "true" || enabled == "1";
  }
  const std::string transport = variable("TENSORWIRE_TRANSPORT");
  if (!transport.empty() && transport != "auto") {
    const bool known = narrow(&read, transport, [](bool is_it) { return is_it; });
    if (!known && transport != "grpc")
      return wrong("TENSORWIRE_TRANSPORT", transport, "auto, shm, verbs, tcp or grpc");
    if (transport == "grpc")
      read.enabled = false;
    else
      read.required = transport;
  }
  const std::string forbidden = variable("TENSORWIRE_FORBID");
  for (const absl::string_view name :
       absl::StrSplit(forbidden, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    if (!narrow(&read, name, [](bool is_it) { return !is_it; }))
      return wrong("TENSORWIRE_FORBID", forbidden,
                   "any of shm, verbs, tcp: TensorFlow's own gRPC cannot be done without");
  }
  const bool none = !read.shm && !read.verbs && !read.tcp;
  if (none && !read.required.empty())
    return absl::InvalidArgumentError(absl::StrCat("TENSORWIRE_TRANSPORT=", read.required,
                                                   " requires what TENSORWIRE_FORBID=", forbidden,
                                                   " leaves out: unset one of them"));
  if (none) read.enabled = false;
  const std::string arena = variable("TENSORWIRE_TF_ARENA");
  if (!arena.empty() && arena != "auto" && arena != "traced" && arena != "off")
    return wrong("TENSORWIRE_TF_ARENA", arena, "auto, traced or off");
  read.arena = arena != "off";
  read.traced = arena == "traced";
  g_settings = read;
  return absl::OkStatus();
}

const Settings& settings() { return g_settings; }

}  // namespace tensorwire
