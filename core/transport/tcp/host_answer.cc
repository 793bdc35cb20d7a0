// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/host_answer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tw::tcp {
namespace {

// What the peer takes while its process reads nothing, beyond a frame that is sent to have it
// answered: such frames never fill its buffer, so that they keep nothing else back.
constexpr uint32_t kRoom = 16 << 10;

// Where struct tcp_info of Linux has what older headers do not know.
constexpr size_t kUnsentAt = 144, kWindowAt = 228, kInfoSize = 232;
static_assert(offsetof(tcp_info, tcpi_last_ack_recv) == 56 && sizeof(tcp_info) <= kInfoSize);

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;

  // Without the port.
  bool operator==(const Address& other) const {
    if (storage.ss_family != other.storage.ss_family) return false;
    const auto same = [&](size_t at, size_t length) {
      const auto* const mine = reinterpret_cast<const std::byte*>(&storage);
      const auto* const theirs = reinterpret_cast<const std::byte*>(&other.storage);
      return std::memcmp(mine + at, theirs + at, length) == 0;
    };
    if (storage.ss_family == AF_INET) return same(offsetof(sockaddr_in, sin_addr), sizeof(in_addr));
    return storage.ss_family == AF_INET6 &&
           same(offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr));
  }
};

}  // namespace

bool reaches_itself(int socket) {
  Address here, there;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&here.storage), &here.size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0 &&
         here == there;
}

HostAnswer host_answer(int socket) {
  std::array<std::byte, kInfoSize> bytes{};
  socklen_t size = bytes.size();
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, bytes.data(), &size) != 0) return {};
  tcp_info info{};
  std::memcpy(&info, bytes.data(), sizeof info);
  const auto word = [&](size_t at) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  HostAnswer answer;
  const uint32_t unsent = word(kUnsentAt), window = word(kWindowAt);  // 0: not known
  // Of several probes of a peer without room one may stay without an answer: Linux gives two in a
  // second (the setting tcp_invalid_ratelimit). And where the network of this host is down, what
  // the peer has room for does not leave at all.
  answer.due = info.tcpi_unacked != 0 || info.tcpi_probes > 1 || (unsent != 0 && window >= kRoom);
  answer.ago = static_cast<Nanos>(info.tcpi_last_ack_recv) * kMillisecond;
  answer.room = unsent == 0 && window >= kRoom;
  answer.waits = unsent != 0;
  return answer;
}

}  // namespace tw::tcp
