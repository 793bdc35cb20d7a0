// SPDX-License-Identifier: Apache-2.0
// Which transports the user permits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tw::route {

struct Policy {
  std::string required;                // the only transport that may carry anything; empty: any
  std::vector<std::string> forbidden;  // names of transports
  std::string origin;                  // what the user wrote to require it, for error texts
  std::string forbidden_by{};          // and what to forbid others

  // Why the transport may carry nothing; empty: it may.
  std::string refusal(std::string_view transport) const;
  bool permits(std::string_view transport) const { return refusal(transport).empty(); }
};

}  // namespace tw::route
