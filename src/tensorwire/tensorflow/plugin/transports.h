// SPDX-License-Identifier: Apache-2.0
// The runtime's transports, with what the user permits and what they have carried.
#pragma once

#include <list>
#include <string>

#include "absl/strings/string_view.h"
#include "statistics.h"
#include "tensorwire.h"

namespace tensorwire {

struct Transport {
  explicit Transport(const tw_transport& of)
      : name(of.name), local(of.local != 0), lends(of.lends != 0) {}

  const std::string name;
  const bool local;  // for processes of one user on one host, which may read in place
  // Large tensors stay in the sender's arena until the receiver has read them.
  const bool lends;
  bool permitted = true;  // TENSORWIRE_TRANSPORT, TENSORWIRE_FORBID; set when the plugin starts
  Counter received{0}, received_bytes{0};
  Counter failed{0};  // links: not made, or lost
};

// Best first; the same objects for ever. The first caller hands over the table.
std::list<Transport>& transports(const tw_table& table);
std::list<Transport>& transports();
// Null: the runtime has none of this name, or it is none to choose.
Transport* find_transport(absl::string_view name);

}  // namespace tensorwire
