// SPDX-License-Identifier: Apache-2.0
#include "wire/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/text.h"
#include "wire/welcome.h"

namespace tw::wire {
namespace {

constexpr bool digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool small(char c) { return c >= 'a' && c <= 'z'; }
constexpr bool of_kind(char c) { return small(c) || digit(c) || c == '_' || c == '-'; }
constexpr bool of_name(char c) { return of_kind(c) || (c >= 'A' && c <= 'Z') || c == '.'; }

bool ipv6_number(std::string_view text) {
  const std::string number(text);
  in6_addr address;
  return number.size() < INET6_ADDRSTRLEN && number.find('\0') == number.npos &&
         inet_pton(AF_INET6, number.c_str(), &address) == 1;
}

bool zoned(std::string_view text) {
  const size_t percent = text.find('%');
  if (percent == text.npos) return ipv6_number(text);
  const std::string_view zone = text.substr(percent + 1);
  return ipv6_number(text.substr(0, percent)) && !zone.empty() && zone.size() <= kMaxZoneLength &&
         std::ranges::all_of(zone, of_name);
}

}  // namespace

Result<DataAddress> decode_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) -> Status {
    return {Code::kInvalidArgument,
            tw::text({"not an address of a data plane: ", quoted(text), ": ", why})};
  };
  if (text.size() > kMaxAddressLength) return wrong("it is too long");
  const size_t colon = text.find(':');
  if (colon == text.npos) return wrong("it has no colon");
  const DataAddress address{text.substr(0, colon), text.substr(colon + 1)};
  if (address.kind.empty() || address.kind.size() > kMaxKindLength ||
      !std::ranges::all_of(address.kind, of_kind))
    return wrong("what is before the colon names no transport");
  if (address.where.empty()) return wrong("nothing follows the transport");
  return address;
}

Result<HostAndPort> decode_host_and_port(std::string_view where) {
  const auto wrong = [&](std::string_view why) -> Status {
    return {Code::kInvalidArgument, text({"not a host and port: ", quoted(where), ": ", why})};
  };
  const size_t colon = where.rfind(':');
  if (colon == where.npos) return wrong("it has no colon");
  HostAndPort found;
  const std::string_view port = where.substr(colon + 1);
  // No sign, no blank and nothing behind it, all of which from_chars() or its user might permit.
  if (port.empty() || port.size() > 5 || port.front() == '0' || !std::ranges::all_of(port, digit) ||
      std::from_chars(port.data(), port.data() + port.size(), found.port).ec != std::errc{})
    return wrong("the port is no number from 1 to 65535");
  found.host = where.substr(0, colon);
  if (found.host.empty()) return wrong("it has no host");
  if (found.host.front() == '[') {
    if (found.host.back() != ']' || !zoned(found.host.substr(1, found.host.size() - 2)))
      return wrong("what is in brackets is no IPv6 number");
    found.host = found.host.substr(1, found.host.size() - 2);
    found.ipv6 = true;
    return found;
  }
  if (found.host.find(':') != found.host.npos) return wrong("an IPv6 number stands in brackets");
  if (found.host.size() > kMaxHostLength || !std::ranges::all_of(found.host, of_name))
    return wrong("the host is neither a name nor a number");
  return found;
}

Result<std::string_view> decode_path(std::string_view where) {
  if (where.empty() || where.find('\0') != where.npos)
    return Status{Code::kInvalidArgument, text({"not a socket path: ", quoted(where)})};
  return where;
}

}  // namespace tw::wire
