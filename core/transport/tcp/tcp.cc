// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "transport/keep_alive.h"
#include "transport/tcp/host_answer.h"

namespace tw {
namespace {

// A push chunk holds up small messages behind it for its own time on the wire. Nothing else bounds
// it below what a frame carries, so that whoever sets a larger one gets it.
constexpr size_t kUnaskedChunk = 1 << 20;

Code code_of(int error) {
  switch (error) {
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

std::string window_based_congestion() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string name;
  bool reno = false;
  while (file >> name) {
    if (name == "cubic") return name;
    reno = reno || name == "reno";
  }
  return reno ? "reno" : std::string{};
}

// The name that is to be set; empty: the system's default stays.
std::string wanted_congestion(const tcp::Settings& settings) {
  if (settings.congestion == "system") return {};
  if (settings.congestion != "auto") return settings.congestion;
  // BBR paces: on loopback it reaches a third of what a window-based control does.
  thread_local std::string found;  // not read for each link
  if (found.empty()) found = window_based_congestion();
  return found;
}

// Of a socket within a host. Where the kernel refuses a control it gets reno, and doctor says so.
void set_congestion(int socket, const tcp::Settings& settings) {
  const std::string name = wanted_congestion(settings);
  if (name.empty()) return;
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                 static_cast<socklen_t>(name.size())) != 0)
    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

}  // namespace

std::string same_host_congestion(const tcp::Settings& settings) {
  const Fd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_congestion(probe.get(), settings);
  std::array<char, 16> name{};
  socklen_t size = name.size();
  if (getsockopt(probe.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return {};
  return {name.data(), strnlen(name.data(), name.size())};
}

Result<std::unique_ptr<Transport>> TcpTransport::create(Fd socket, bool same_host,
                                                        const tcp::Settings& settings) {
  const int fd = socket.get();
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
    return errno_status(Code::kInternal, "cannot make a socket non-blocking", errno);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  keep_alive(fd, settings.silence);
  if (same_host) set_congestion(fd, settings);
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return errno_status(Code::kResourceExhausted, "cannot create an eventfd", errno);
  return std::unique_ptr<Transport>(new TcpTransport(std::move(socket), std::move(wake), settings));
}

TcpTransport::TcpTransport(Fd socket, Fd wake, const tcp::Settings& settings)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      abroad_(!tcp::reaches_itself(socket_.get())),
      profile_{"tcp",
               Bulk::kPush,
               settings.coalesce_bytes,
               settings.eager_bytes,
               settings.chunk_given ? settings.chunk_bytes
                                    : std::min(settings.chunk_bytes, kUnaskedChunk),
               1,
               false,
               kUnaskedChunk} {}

TcpTransport::~TcpTransport() { unwatch(); }

Result<size_t> TcpTransport::send(std::span<const iovec> data) {
  if (gone()) return gone_status();
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(data.data());
  message.msg_iovlen = data.size();
  for (;;) {
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      trace_send(static_cast<size_t>(n));
      return static_cast<size_t>(n);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR)
      return errno_status(code_of(errno), "the connection to the peer broke", errno);
  }
}

// The end of a socket that has not read everything resets the connection, and a reset drops what
// waits here for room at the peer. What has been sent stays readable there (tcp(7), SIOCOUTQNSD).
bool TcpTransport::undelivered() {
  int waiting = 0;
  return !gone() && ioctl(socket_.get(), SIOCOUTQNSD, &waiting) == 0 && waiting > 0;
}

std::optional<HostAnswer> TcpTransport::host_answer() {
  if (!abroad_) return std::nullopt;
  return tcp::host_answer(socket_.get());
}

Result<size_t> TcpTransport::receive(std::span<const iovec> room) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(room.data());
  message.msg_iovlen = room.size();
  for (;;) {
    const ssize_t n = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && errno == EINTR) continue;
    // Who sends may have heard the reason, which the kernel says once.
    if (gone()) return gone_status();
    if (n == 0) return Status{Code::kUnavailable, "the peer closed the connection"};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    return errno_status(code_of(errno), "the connection to the peer broke", errno);
  }
}

Wake TcpTransport::sleep(bool want_send, Nanos deadline) {
  sleeping_.store(true, std::memory_order_seq_cst);
  Wake result = Wake::kReady;
  if (!interrupted_.load(std::memory_order_seq_cst)) {
    pollfd fds[2] = {{socket_.get(), static_cast<short>(want_send ? POLLIN | POLLOUT : POLLIN), 0},
                     {wake_.get(), POLLIN, 0}};
    timespec limit = until(deadline);
    const int n = ppoll(fds, 2, deadline == kForever ? nullptr : &limit, nullptr);
    if (n == 0) result = Wake::kTimeout;
    if (n < 0) result = Wake::kSignal;
    if (n > 0 && fds[1].revents != 0) {
      uint64_t value;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &value, sizeof value);
    }
  }
  sleeping_.store(false, std::memory_order_relaxed);
  // Acquires what the interrupter did before: the driver looks again once this returns.
  interrupted_.exchange(false, std::memory_order_acq_rel);
  return result;
}

void TcpTransport::interrupt() {
  interrupted_.store(true, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
  }
}

Status TcpTransport::watch(Poller& poller, Ref<Watcher> watcher) {
  auto watched = poller.watch(socket_.get(), EPOLLONESHOT, std::move(watcher));
  if (!watched) return watched.status();
  poller_ = &poller;
  watch_ = *watched;
  return {};
}

void TcpTransport::unwatch() {
  if (poller_) std::exchange(poller_, nullptr)->unwatch(watch_, socket_.get());
}

void TcpTransport::arm(bool want_send) {
  armed_.store(true, std::memory_order_relaxed);
  if (poller_)
    poller_->rearm(watch_, socket_.get(),
                   EPOLLIN | EPOLLRDHUP | EPOLLONESHOT | (want_send ? EPOLLOUT : 0u));
}

void TcpTransport::disarm() {
  if (armed_.exchange(false, std::memory_order_relaxed) && poller_)
    poller_->rearm(watch_, socket_.get(), EPOLLONESHOT);
}

Transport::Meaning TcpTransport::meaning(uint32_t, uint32_t) {
  armed_.store(false, std::memory_order_relaxed);
  return Meaning::kActivity;
}

void TcpTransport::hang_up() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace tw
