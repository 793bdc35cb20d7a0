// SPDX-License-Identifier: Apache-2.0
// The table of a host, which `tensorwire tune links` measures: thresholds of its links.
//
// Rules as in base/rules_file.h:
//
//   transport  peer         threshold       bytes
//   shm        same_host    eager_bytes     8192
//   tcp        other_hosts  coalesce_bytes  4096
//   tcp        10.0.0.2     eager_bytes     32768
//
// A rule for an address counts more than one for all other hosts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "message/thresholds.h"

namespace tw {

// What a rule for a peer alone calls it, whose address is as gRPC writes it: same_host, or the
// address of its host; other_hosts where that says none. Good as long as the address.
std::string_view host_of_rule(bool same_host, std::string_view address);

class LinkTable {
 public:
  // INVALID_ARGUMENT: the text says which line is wrong, and why.
  static Result<LinkTable> parse(std::string_view text);
  // The one that the settings name, or this user's; an empty one where there is none.
  // INVALID_ARGUMENT: it is not as it should be; the text names it.
  static Result<LinkTable> read(const Settings& settings);

  // For links by `transport` to a peer whose address is as gRPC writes it.
  Wanted of(std::string_view transport, bool same_host, std::string_view address) const;

 private:
  struct Rule {
    std::string transport, peer;
    Threshold threshold;
    size_t bytes;
  };
  std::vector<Rule> rules_;
};

}  // namespace tw
