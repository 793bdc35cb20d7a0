// SPDX-License-Identifier: Apache-2.0
#include "transport/keep_alive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace tw {

// Probes begin after a third of the time. No TCP_USER_TIMEOUT: Linux ends by that a connection,
// too, whose peer has no room for so long, though its host acknowledges each probe.
void keep_alive(int socket, Nanos silence) {
  const int seconds = static_cast<int>(silence / kSecond);
  const int idle = std::max(seconds / 3, 1), interval = std::max(seconds / 6, 1);
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(IPPROTO_TCP, TCP_KEEPCNT, std::max((seconds - idle) / interval, 1));
}

}  // namespace tw
