// SPDX-License-Identifier: Apache-2.0
#include "meet/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "meet/peer_process.h"
#include "process/local_folder.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/joining.h"
#include "transport/verbs/library.h"

namespace tw::meet {
namespace {

Status late(const std::string& address) {
  return {Code::kDeadlineExceeded, "no answer in time from " + address};
}

// Waits until the socket is ready for `events`.
Status await(int socket, short events, Nanos deadline, const std::string& address) {
  for (;;) {
    pollfd fd{socket, events, 0};
    const timespec limit = until(deadline);
    const int n = ppoll(&fd, 1, deadline == kForever ? nullptr : &limit, nullptr);
    if (n > 0) return {};
    if (n == 0) return late(address);
    if (errno != EINTR) return errno_status(Code::kInternal, "ppoll", errno);
  }
}

Status finish_connect(int socket, const sockaddr* to, socklen_t size, Nanos deadline,
                      const std::string& address) {
  if (::connect(socket, to, size) == 0) return {};
  if (errno != EINPROGRESS && errno != EAGAIN)
    return errno_status(Code::kUnavailable, "cannot connect to " + address, errno);
  if (Status status = await(socket, POLLOUT, deadline, address); !status.ok()) return status;
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

Result<Fd> connect_unix(const std::string& path, Nanos deadline, const std::string& address) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof to.sun_path)
    return Status{Code::kInvalidArgument, "not a socket path: " + path};
  std::memcpy(to.sun_path, path.data(), path.size());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_status(Code::kResourceExhausted, "cannot create a socket", errno);
  // Where many are at the door, connect() waits for room in its queue, for as long as a send may
  // take; without blocking it would fail at once, and nothing tells when there is room.
  for (;;) {
    if (now() >= deadline) return late(address);
    if (deadline != kForever) {
      const timespec left = until(deadline);
      const timeval limit{left.tv_sec, left.tv_nsec / 1000 + 1};
      setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
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
Result<Fd> connect_local(const std::string& path, const std::string& runtime_dir, Nanos deadline,
                         const std::string& address) {
  auto told = connect_unix(path, deadline, address);
  if (told || told.status().code() != Code::kUnavailable) return told;
  const std::string here = LocalFolder::elsewhere(path, runtime_dir);
  if (here.empty()) return told;
  auto found = connect_unix(here, deadline, "shm:" + here);
  return found ? std::move(found) : std::move(told);
}

Result<Fd> connect_tcp(const std::string& where, Nanos deadline, const std::string& address) {
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == where.size())
    return Status{Code::kInvalidArgument, "not a host and port: " + where};
  std::string host = where.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int error = getaddrinfo(host.c_str(), where.c_str() + colon + 1, &hints, &list);
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
    last = finish_connect(fd.get(), at->ai_addr, at->ai_addrlen, deadline, address);
    if (last.ok()) return fd;
  }
  return last;
}

Status shake_hands(int socket, ClientHandshake& handshake, Nanos deadline,
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
      if (Status status = await(socket, POLLOUT, deadline, address); !status.ok()) return status;
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
    if (Status status = await(socket, POLLIN, deadline, address); !status.ok()) return status;
  }
  return handshake.failure();
}

// The two ends of a unix socket tell each other which processes they are.
Status meet(int socket, Peer& peer, Nanos deadline, const std::string& address) {
  if (Status status = tell_process(socket); !status.ok()) return status;
  ShmFrameReader reader;
  for (;;) {
    ShmMessage message;
    const auto got = reader.read(socket, message);
    if (!got) return got.status();
    if (*got == ShmFrameReader::Got::kEnd)
      return {Code::kUnavailable, "the peer closed the connection: " + address};
    if (*got == ShmFrameReader::Got::kNothing) {
      if (Status status = await(socket, POLLIN, deadline, address); !status.ok()) return status;
      continue;
    }
    if (message.frame.type != wire::ShmFrameType::kProcess)
      return {Code::kInternal, "protocol error: the server does not say which process it is"};
    if (!message.descriptors.empty()) peer.pidfd = std::move(message.descriptors[0]);
    return {};
  }
}

// Sends all of `bytes`, or fills them.
template <class Move>
Status move_all(int socket, short events, size_t size, Nanos deadline, const std::string& address,
                Move&& move) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = move(done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return {Code::kUnavailable,
              "the peer closed the connection while RDMA was set up: " + address};
    } else if (errno == EAGAIN) {
      if (Status status = await(socket, events, deadline, address); !status.ok()) return status;
    }
  }
  return {};
}

Status send_all(int socket, std::span<const std::byte> bytes, Nanos deadline,
                const std::string& address) {
  return move_all(socket, POLLOUT, bytes.size(), deadline, address, [&](size_t done) {
    return ::send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
  });
}

Status receive_all(int socket, std::span<std::byte> bytes, Nanos deadline,
                   const std::string& address) {
  return move_all(socket, POLLIN, bytes.size(), deadline, address, [&](size_t done) {
    return ::recv(socket, bytes.data() + done, bytes.size() - done, 0);
  });
}

// The client's half of what joins two ends by queue pairs.
Result<std::unique_ptr<Transport>> set_up_verbs(Runtime& runtime, Fd socket, Nanos deadline,
                                                const std::string& address) {
  if constexpr (!verbs::kBuilt) return runtime.verbs().status();
  auto context = runtime.verbs();
  if (!context) return context.status();
  auto background = runtime.background();
  if (!background) return background.status();
  auto joining =
      verbs::Joining::offer(Ref<verbs::Context>::share(*context), runtime.arena(), **background);
  if (!joining) return joining.status();
  std::array<std::byte, wire::kVerbsOfferSize> bytes;
  wire::encode(bytes, (*joining)->frame());
  if (Status status = send_all(socket.get(), bytes, deadline, address); !status.ok()) return status;
  if (Status status = receive_all(socket.get(), bytes, deadline, address); !status.ok())
    return status;
  const auto answer = wire::decode_verbs_offer(bytes);
  if (!answer) return answer.status();
  const Status accepted = (*joining)->accept(*answer);
  wire::VerbsReady ready;
  ready.code = static_cast<uint32_t>(accepted.code());
  std::array<std::byte, wire::kVerbsReadySize> last;
  wire::encode(last, ready);
  const Status sent = send_all(socket.get(), last, deadline, address);
  if (!accepted.ok()) return accepted;
  if (!sent.ok()) return sent;
  return (*joining)->become(std::move(socket));
}

}  // namespace

Result<Connected> connect(Runtime& runtime, const Invitation& invitation, Nanos deadline) {
  const std::string& address = invitation.address;
  const wire::Hello ours = runtime.hello();
  auto version = wire::common_version(ours, invitation.hello);
  if (!version) return version.status();
  if (Status status = wire::check_features(ours, invitation.hello); !status.ok()) return status;

  const bool shm = address.starts_with("shm:"), verbs = address.starts_with("verbs:");
  if (!shm && !verbs && !address.starts_with("tcp:"))
    return Status{Code::kInvalidArgument, "not an address of a data plane: " + address};
  // The reason why there is no RDMA here, before anybody is asked for it.
  if (verbs)
    if (auto context = runtime.verbs(); !context) return context.status();
  const std::string where = address.substr(address.find(':') + 1);
  auto socket = shm ? connect_local(where, runtime.settings().runtime_dir, deadline, address)
                    : connect_tcp(where, deadline, address);
  if (!socket) return socket.status();

  Connected connected;
  bool known = true;
  if (shm) {
    auto peer = unix_peer(socket->get());
    if (!peer) return peer.status();
    connected.peer = std::move(*peer);
    const auto by_socket = watch_unix_peer(socket->get(), connected.peer);
    if (!by_socket) return by_socket.status();
    known = *by_socket;
  } else {
    connected.peer.address = socket_address(socket->get(), true);
  }
  connected.peer.stream_window = invitation.hello.stream_window;
  connected.peer.features = invitation.hello.features;
  const auto kind = shm     ? wire::Transport::kShm
                    : verbs ? wire::Transport::kVerbs
                            : wire::Transport::kTcp;
  ClientHandshake handshake(*version, kind, invitation.session, invitation.instance,
                            invitation.secret);
  if (Status status = shake_hands(socket->get(), handshake, deadline, address); !status.ok())
    return status;

  if (!known)
    if (Status status = meet(socket->get(), connected.peer, deadline, address); !status.ok())
      return status;

  if (!shm && wire::same_pids(ours, invitation.hello) && invitation.hello.pid != 0) {
    connected.peer.pid = static_cast<int>(invitation.hello.pid);
    auto watched = watch_process(connected.peer.pid);
    if (!watched) return watched.status();
    connected.peer.pidfd = std::move(*watched);
  }
  const bool same_host = wire::same_host(ours, invitation.hello);
  auto transport = shm ? ShmTransport::offer(std::move(*socket), runtime.settings())
                   : verbs
                       ? set_up_verbs(runtime, std::move(*socket), deadline, address)
                       : TcpTransport::create(std::move(*socket), same_host, runtime.settings());
  if (!transport) return transport.status();
  connected.transport = std::move(*transport);
  return connected;
}

}  // namespace tw::meet
