// SPDX-License-Identifier: Apache-2.0
// A client of a listener, step by step.
#pragma once

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/fd.h"
#include "meet/connect.h"
#include "meet/handshake.h"

namespace tw::test {

inline Fd socket_for(const std::string& address) {
  const int family = address.starts_with("shm:") ? AF_UNIX : AF_INET;
  return Fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

inline void dial(const Fd& fd, const std::string& address) {
  sockaddr_storage to{};
  socklen_t size;
  if (address.starts_with("shm:")) {
    auto* const un = reinterpret_cast<sockaddr_un*>(&to);
    un->sun_family = AF_UNIX;
    std::memcpy(un->sun_path, address.c_str() + 4, address.size() - 3);
    size = sizeof *un;
  } else {
    auto* const in = reinterpret_cast<sockaddr_in*>(&to);
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in->sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    size = sizeof *in;
  }
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), size) == 0);
}

inline Fd dial(const std::string& address) {
  Fd fd = socket_for(address);
  dial(fd, address);
  return fd;
}

// Takes a handshake as far as `steps` frames by this end. False: the server has closed the
// connection before.
inline bool shake_in_time(const Fd& fd, meet::ClientHandshake& handshake, int steps) {
  while (!handshake.finished()) {
    if (const auto bytes = handshake.outgoing(); !bytes.empty()) {
      if (steps-- == 0) return true;
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return false;
      REQUIRE(n == static_cast<ssize_t>(bytes.size()));
      REQUIRE(handshake.sent(bytes.size()).ok());
      continue;
    }
    const auto room = handshake.space();
    const ssize_t n = recv(fd.get(), room.data(), room.size(), 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return false;
    REQUIRE(n > 0);
    REQUIRE(handshake.received(static_cast<size_t>(n)).ok());
  }
  return true;
}

inline void shake(const Fd& fd, meet::ClientHandshake& handshake, int steps) {
  REQUIRE(shake_in_time(fd, handshake, steps));
}

inline meet::ClientHandshake papers(Runtime& runtime, const meet::Invitation& in) {
  const Kind* const kind = runtime.kind(in.address.substr(0, in.address.find(':')));
  REQUIRE(kind);
  return meet::ClientHandshake(1, kind->code(), in.session, in.instance, in.secret);
}

}  // namespace tw::test
