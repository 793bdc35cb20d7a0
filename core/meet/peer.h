// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a connection.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "wire/hello.h"

namespace tw {

struct Peer {
  std::string address;     // as gRPC writes it: ipv4:127.0.0.1:4242, unix:
  bool same_host = false;  // it runs under this kernel
  int pid = 0;             // 0 unless it runs on this host and this pid namespace knows it
  Fd pidfd;                // readable once it has died; none when it runs elsewhere
  // The credit with which it lets each stream towards it begin, bytes.
  uint64_t stream_window = wire::kDefaultStreamWindow;
  uint64_t features = wire::kFeatures;  // that its Hello offered
  // Of a client, as the bootstrap saw it: where it came from, and by what program. Empty: unknown.
  std::string caller, agent;

  // Where it is, as its other users know it: the bootstrap may have come through a proxy.
  const std::string& origin() const { return caller.empty() ? address : caller; }

  // For people.
  std::string name() const {
    return pid == 0 ? address : address + " (pid " + std::to_string(pid) + ")";
  }
};

}  // namespace tw
