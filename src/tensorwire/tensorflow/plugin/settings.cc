#include "settings.h"

#include <cstdlib>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tensorwire {
namespace {

Settings g_settings;

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
    if (transport != "shm" && transport != "tcp" && transport != "grpc")
      return wrong("TENSORWIRE_TRANSPORT", transport, "auto, shm, tcp or grpc");
    read.shm = transport == "shm";
    read.tcp = transport == "tcp";
    if (transport == "grpc")
      read.enabled = false;
    else
      read.required = transport;
  }
  const std::string forbidden = variable("TENSORWIRE_FORBID");
  for (const absl::string_view name :
       absl::StrSplit(forbidden, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    if (name == "shm")
      read.shm = false;
    else if (name == "tcp")
      read.tcp = false;
    else
      return wrong("TENSORWIRE_FORBID", forbidden,
                   "shm, tcp or both: TensorFlow's own gRPC cannot be done without");
  }
  if ((read.required == "shm" && !read.shm) || (read.required == "tcp" && !read.tcp))
    return absl::InvalidArgumentError(absl::StrCat("TENSORWIRE_TRANSPORT=", read.required,
                                                   " requires what TENSORWIRE_FORBID=", forbidden,
                                                   " leaves out: unset one of them"));
  if (!read.shm && !read.tcp) read.enabled = false;
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
