// SPDX-License-Identifier: Apache-2.0
#include "meet/peer_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tw::meet {

Result<Fd> watch_process(int pid) {
  Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd || errno == ENOSYS || errno == EPERM || errno == EINVAL) return fd;
  return errno_status(Code::kUnavailable, "the peer's process (pid " + std::to_string(pid) + ")",
                      errno);
}

Result<Peer> unix_peer(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return errno_status(Code::kPermissionDenied, "the peer's user is unknown", errno);
  if (credentials.uid != ::geteuid() || credentials.uid == wire::kOverflowUid)
    return Status{Code::kPermissionDenied,
                  "the peer runs as user " + std::to_string(credentials.uid) +
                      ", and shared memory is for processes of one user only"};
  Peer peer;
  peer.address = "unix:";
  peer.same_host = true;
  peer.pid = credentials.pid;
  return peer;
}

std::string socket_address(int socket, bool of_peer) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if ((of_peer ? getpeername(socket, any, &size) : getsockname(socket, any, &size)) != 0) return {};
  char text[INET6_ADDRSTRLEN];
  if (address.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    return std::string("ipv4:") + text + ":" + std::to_string(ntohs(in->sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(&address);
    inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
    return std::string("ipv6:[") + text + "]:" + std::to_string(ntohs(in->sin6_port));
  }
  return "unix:";
}

std::string source_of(const Peer& peer) {
  if (peer.pid != 0) return "pid " + std::to_string(peer.pid);
  const std::string host = peer.address.substr(0, peer.address.rfind(':'));
  in6_addr number{};
  if (!host.starts_with("ipv6:[") ||
      inet_pton(AF_INET6, host.substr(6, host.size() - 7).c_str(), &number) != 1 ||
      IN6_IS_ADDR_V4MAPPED(&number))
    return host;
  std::memset(number.s6_addr + 8, 0, 8);
  char text[INET6_ADDRSTRLEN];
  return std::string("ipv6:") + inet_ntop(AF_INET6, &number, text, sizeof text) + "/64";
}

}  // namespace tw::meet
