// SPDX-License-Identifier: Apache-2.0
// What the kernel says about the process at the other end.
#pragma once

#include "meet/peer.h"

namespace tw::meet {

// The process at the other end of a connected unix socket. PERMISSION_DENIED: it belongs to another
// user, or to one that this namespace cannot name. Its death is not watched yet.
Result<Peer> unix_peer(int socket);

// The process that called itself `pid` in this process's pid namespace, over an authenticated
// channel. UNAVAILABLE: it has died. Without pidfds (Linux < 5.3) its death is seen by end of file
// only.
Result<Fd> watch_process(int pid);

// As gRPC writes it: ipv4:1.2.3.4:5, ipv6:[::1]:5.
std::string socket_address(int socket, bool of_peer);

// What may be one greedy program: the process where the kernel tells it, else a host, which is 64
// bits of an IPv6 address.
std::string source_of(const Peer& peer);

}  // namespace tw::meet
