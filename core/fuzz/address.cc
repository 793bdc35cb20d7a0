// SPDX-License-Identifier: Apache-2.0
// Addresses: what decodes is written to the same text again, and holds nothing by which the system
// would read another host than whoever judged it.
#include "wire/address.h"

#include <algorithm>
#include <string>

#include "fuzz/fuzz.h"
#include "wire/welcome.h"

namespace tw::wire {
namespace {

using fuzz::require;
using fuzz::require_sentence;

void host_and_port(std::string_view where) {
  const auto found = decode_host_and_port(where);
  if (!found.ok()) return require_sentence(found.status());
  const std::string host(found->host);
  require(!host.empty() && host.size() <= kMaxHostLength, "a host has its length");
  require(std::ranges::all_of(host, [](char c) { return c > ' ' && c < 0x7f && c != '/'; }),
          "a host is printable");
  require((host.find(':') != host.npos) == found->ipv6, "only an IPv6 number has colons");
  require(found->port != 0, "a port is one");
  require((found->ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(found->port) == where,
          "the same text again");
}

void one(fuzz::Input input) {
  const fuzz::Bytes bytes = input.rest();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto address = decode_address(text);
  if (!address.ok()) {
    require_sentence(address.status());
    return host_and_port(text);
  }
  require(text.size() <= kMaxAddressLength, "an address has its length");
  require(!address->where.empty(), "there is a place");
  require(std::string(address->kind) + ":" + std::string(address->where) == text,
          "the same text again");
  if (const auto path = decode_path(address->where); path.ok())
    require(path->find('\0') == path->npos, "the system reads all of a path");
  else
    require_sentence(path.status());
  host_and_port(address->where);
}

}  // namespace
}  // namespace tw::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tw::wire::one({data, size});
  return 0;
}
