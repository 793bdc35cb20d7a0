// SPDX-License-Identifier: Apache-2.0
#include "meet/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "meet/peer_process.h"
#include "process/local_folder.h"
#include "wire/address.h"

namespace tw::meet {
namespace {

Status late(const std::string& address) {
  return {Code::kDeadlineExceeded, "no answer in time from " + address};
}

// Who may be interrupted looks so often whether it is.
constexpr Nanos kSlice = 50 * kMillisecond;

// Waits until the socket is ready for `events`.
Status await(int socket, short events, const Wait& wait, const std::string& address) {
  for (;;) {
    pollfd fd{socket, events, 0};
    const Nanos slice = wait.interrupted ? std::min(wait.deadline, now() + kSlice) : wait.deadline;
    const timespec limit = until(slice);
    const int n = ppoll(&fd, 1, slice == kForever ? nullptr : &limit, nullptr);
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return errno_status(Code::kInternal, "ppoll", errno);
    if (wait.interrupted && wait.interrupted(wait.context) != 0)
      return {Code::kCancelled, "the wait was interrupted"};
    if (n == 0 && slice == wait.deadline) return late(address);
  }
}

Status finish_connect(int socket, const sockaddr* to, socklen_t size, const Wait& wait,
                      const std::string& address) {
  if (::connect(socket, to, size) == 0) return {};
  if (errno != EINPROGRESS && errno != EAGAIN)
    return errno_status(Code::kUnavailable, "cannot connect to " + address, errno);
  if (Status status = await(socket, POLLOUT, wait, address); !status.ok()) return status;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return errno_status(Code::kUnavailable, "cannot connect to " + address, error);
  return {};
}

// What is missing where a server's socket cannot be reached.
std::string remedy(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "; containers of one host need the server's folder in common: give both -v tw:/run/tw "
             "-e TENSORWIRE_RUNTIME_DIR=/run/tw";
    case EACCES:
    case EPERM:
      return "; both processes have to run as one user, containers with the same --user";
    default:
      return {};
  }
}

Result<Fd> connect_unix(const std::string& path, const Wait& wait, const std::string& address) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof to.sun_path)
    return Status{Code::kInvalidArgument, "not a socket path: " + path};
  std::memcpy(to.sun_path, path.data(), path.size());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_status(Code::kResourceExhausted, "cannot create a socket", errno);
  // Where many connect at once, connect() waits for room in its queue, for as long as a send may
  // take; without blocking it would fail at once, and nothing tells when there is room.
  for (;;) {
    if (now() >= wait.deadline) return late(address);
    if (wait.interrupted && wait.interrupted(wait.context) != 0)
      return Status{Code::kCancelled, "the wait was interrupted"};
    const timespec left = until(std::min(wait.deadline, now() + kSlice));
    const timeval limit{left.tv_sec, left.tv_nsec / 1000 + 1};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) break;
    if (const int error = errno; error != EINTR && error != EAGAIN) {
      const Status why = errno_status(Code::kUnavailable, "cannot connect to " + address, error);
      return Status{why.code(), why.details() + remedy(error)};
    }
  }
  if (fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0)
    return errno_status(Code::kInternal, "cannot make a socket non-blocking", errno);
  return fd;
}

// By the path that the server has told, or by the one that its folder has here.
Result<Fd> connect_local(std::string_view where, const std::string& runtime_dir, const Wait& wait,
                         const std::string& address, std::string_view kind) {
  const auto checked = wire::decode_path(where);
  if (!checked) return checked.status();
  const std::string path(*checked);
  auto told = connect_unix(path, wait, address);
  if (told || told.status().code() != Code::kUnavailable) return told;
  const std::string here = LocalFolder::elsewhere(path, runtime_dir);
  if (here.empty()) return told;
  auto found = connect_unix(here, wait, std::string(kind) + ":" + here);
  return found ? std::move(found) : std::move(told);
}

Result<Fd> connect_tcp(std::string_view where, const Wait& wait, const std::string& address) {
  const auto found = wire::decode_host_and_port(where);
  if (!found) return found.status();
  const std::string host(found->host);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (found->ipv6 ? AI_NUMERICHOST : 0);
  if (const int error =
          getaddrinfo(host.c_str(), std::to_string(found->port).c_str(), &hints, &list);
      error != 0)
    return Status{Code::kUnavailable, "cannot resolve " + host + ": " + gai_strerror(error)};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  Status last{Code::kUnavailable, "no address for " + host};
  for (const addrinfo* at = list; at; at = at->ai_next) {
    Fd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
      last = errno_status(Code::kResourceExhausted, "cannot create a socket", errno);
      continue;
    }
    last = finish_connect(fd.get(), at->ai_addr, at->ai_addrlen, wait, address);
    if (last.ok()) return fd;
  }
  return last;
}

Status shake_hands(int socket, ClientHandshake& handshake, const Wait& wait,
                   const std::string& address) {
  while (!handshake.finished()) {
    if (const auto out = handshake.outgoing(); !out.empty()) {
      const ssize_t n = ::send(socket, out.data(), out.size(), MSG_NOSIGNAL);
      if (n >= 0) {
        if (Status status = handshake.sent(static_cast<size_t>(n)); !status.ok()) return status;
        continue;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        handshake.closed();
        break;
      }
      if (Status status = await(socket, POLLOUT, wait, address); !status.ok()) return status;
      continue;
    }
    const auto in = handshake.space();
    const ssize_t n = ::recv(socket, in.data(), in.size(), 0);
    if (n > 0) {
      if (Status status = handshake.received(static_cast<size_t>(n)); !status.ok()) return status;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || errno != EAGAIN) {
      handshake.closed();
      break;
    }
    if (Status status = await(socket, POLLIN, wait, address); !status.ok()) return status;
  }
  return handshake.failure();
}

Result<Setup::Made> set_up(Setup& setup, Fd socket, const Wait& wait, const std::string& address) {
  for (;;) {
    const auto next = setup.go_on(socket.get());
    if (!next) {
      const Status& why = next.status();
      if (why.code() != Code::kUnavailable) return why;
      return Status{why.code(), why.details() + ": " + address};
    }
    Status waited;
    switch (*next) {
      case Setup::Next::kDone:
        return setup.become(std::move(socket));
      case Setup::Next::kBlocking:
        setup.run_blocking();
        break;
      case Setup::Next::kRead:
        waited = await(socket.get(), POLLIN, wait, address);
        break;
      case Setup::Next::kWrite:
        waited = await(socket.get(), POLLOUT, wait, address);
        break;
    }
    if (!waited.ok()) return waited;
  }
}

}  // namespace

Result<uint16_t> agreed_version(const wire::Hello& ours, const wire::Hello& theirs) {
  auto version = wire::common_version(ours, theirs);
  if (!version) return version;
  if (Status features = wire::check_features(ours, theirs); !features.ok()) return features;
  return version;
}

Result<Connected> connect(Runtime& runtime, const Invitation& invitation, const Wait& wait) {
  const std::string& address = invitation.address;
  const wire::Hello ours = runtime.hello();
  auto version = agreed_version(ours, invitation.hello);
  if (!version) return version.status();

  const auto split = wire::decode_address(address);
  if (!split) return split.status();
  Kind* const kind = runtime.kind(split->kind);
  if (!kind)
    return Status{Code::kInvalidArgument, text({"not an address of a data plane: ", quoted(address),
                                                ": no transport ", quoted(split->kind)})};
  // The reason why this process cannot, before anybody is asked.
  if (Status why = kind->why_not(); !why.ok()) return why;
  const bool local = kind->socket() == Kind::Socket::kUnix;
  auto socket = local ? connect_local(split->where, runtime.settings().runtime_dir, wait, address,
                                      kind->name())
                      : connect_tcp(split->where, wait, address);
  if (!socket) return socket.status();

  Connected connected;
  if (local) {
    auto peer = unix_peer(socket->get());
    if (!peer) return peer.status();
    connected.peer = std::move(*peer);
  } else {
    connected.peer.address = socket_address(socket->get(), true);
  }
  connected.peer.stream_window = invitation.hello.stream_window;
  connected.peer.features = invitation.hello.features;
  ClientHandshake handshake(*version, kind->code(), invitation.session, invitation.instance,
                            invitation.secret);
  if (Status status = shake_hands(socket->get(), handshake, wait, address); !status.ok())
    return status;

  if (!local && wire::same_pids(ours, invitation.hello) && invitation.hello.pid != 0) {
    connected.peer.pid = static_cast<int>(invitation.hello.pid);
    auto watched = watch_process(connected.peer.pid);
    if (!watched) return watched.status();
    connected.peer.pidfd = std::move(*watched);
  }
  connected.peer.same_host = local || wire::same_host(ours, invitation.hello);
  auto setup = kind->offer({wire::same_host(ours, invitation.hello)});
  if (!setup) return setup.status();
  auto made = set_up(**setup, std::move(*socket), wait, address);
  if (!made) return made.status();
  connected.transport = std::move(made->transport);
  if (made->process) connected.peer.pidfd = std::move(made->process);
  return connected;
}

}  // namespace tw::meet
