// SPDX-License-Identifier: Apache-2.0
// The addresses of a data plane, as a server tells them: text that a peer chose.
//
//   address   kind ":" where
//   kind      a transport: 1 to 32 of a-z 0-9 _ -
//   where     a path, for transports within a host; host ":" port for the others
//   host      a name or an IPv4 number: 1 to 253 of A-Z a-z 0-9 . _ -
//             "[" IPv6 number "]", the number perhaps with "%" and a zone
//   port      1 to 65535, in digits, the first of them no zero
//
// Each text is read in one way or refused, so that whoever judges an address and whoever dials it
// cannot mean different hosts. tensorwire.rpc.target reads the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tw::wire {

inline constexpr size_t kMaxKindLength = 32;
inline constexpr size_t kMaxHostLength = 253;  // of a name (RFC 1035); a number is shorter
inline constexpr size_t kMaxZoneLength = 15;   // an interface's name on Linux

// They point into the text.
struct DataAddress {
  std::string_view kind;
  std::string_view where;
};
struct HostAndPort {
  std::string_view host;  // without brackets
  bool ipv6 = false;      // a number, no name to be resolved
  uint16_t port = 0;
};

// All of them: INVALID_ARGUMENT, with what is wrong and the text.
Result<DataAddress> decode_address(std::string_view text);
Result<HostAndPort> decode_host_and_port(std::string_view where);
// Without a NUL, which would end it early for the system.
Result<std::string_view> decode_path(std::string_view where);

}  // namespace tw::wire
