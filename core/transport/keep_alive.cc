// SPDX-License-Identifier: Apache-2.0
#include "transport/keep_alive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace tw {

void keep_alive(int socket) {
  constexpr int kIdleSeconds = 10;
  constexpr int kIntervalSeconds = 5;
  constexpr int kProbes = 4;
  constexpr int kUserTimeoutMillis = 30'000;
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMillis);
}

}  // namespace tw
