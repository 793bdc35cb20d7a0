// SPDX-License-Identifier: Apache-2.0
#include "meet/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/mutex.h"
#include "base/shortage.h"
#include "base/text.h"
#include "meet/peer_process.h"

namespace tw::meet {

// One connection on its way to becoming a link.
class Listener::PendingConnection final : public Watcher {
 public:
  PendingConnection(Ref<Listener> listener, Fd socket, Peer peer, const std::vector<Kind*>& kinds)
      : listener_(std::move(listener)),
        began_(now()),
        socket_(std::move(socket)),
        kinds_(kinds),
        handshake_(codes(kinds), listener_->runtime_.instance(), listener_->admissions_),
        peer_(std::move(peer)) {}

  void begin() {
    {
      const MutexLock lock(mutex_);
      if (stopped_) return;
      auto watch = listener_->poller_.watch(socket_.get(), EPOLLONESHOT, Ref<Watcher>::share(this));
      if (!watch) {
        note(Incident::kBudgetDescriptors, watch.status());
        return give_up();
      }
      watch_ = *watch;
      timer_ = listener_->poller_.add_timer(began_ + std::min(kFirstFrame, listener_->patience_),
                                            Ref<Watcher>::share(this));
    }
    // Mostly the first frame is there already, so that it does not count as silent.
    on_event(0, 0);
  }

  // Makes room for another one.
  void evict() {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    note(Incident::kEvictedStranger,
         {Code::kResourceExhausted,
          text({"it gave way to another connection, in state ", name(handshake_.state())})});
    stopped_ = true;
    dismiss();
  }

  // Ends it from outside.
  void stop() {
    const MutexLock lock(mutex_);
    stopped_ = true;
    dismiss();
  }

  // Whoever had to give way is counted no more: it goes, whatever becomes of the newcomer. Told
  // without any lock, as it has one of its own.
  struct Displaced {
    ~Displaced() {
      if (who && !has_memory_for([this] { who->evict(); })) who->stop();
    }
    Ref<PendingConnection> who;
  };

 private:
  static std::vector<uint16_t> codes(const std::vector<Kind*>& kinds) {
    std::vector<uint16_t> codes;
    for (const Kind* kind : kinds) codes.push_back(kind->code());
    return codes;
  }

  // Mutex held. For good when it has failed, or because a link takes over the socket.
  void finish() TW_REQUIRES(mutex_) {
    if (watch_ == 0) return;
    listener_->poller_.cancel_timer(timer_);
    listener_->poller_.unwatch(std::exchange(watch_, 0), socket_.get());
  }

  void on_timer() override {
    const Ref<PendingConnection> keep = Ref<PendingConnection>::share(this);
    const MutexLock lock(mutex_);
    if (watch_ == 0) return;
    // There is no other timer that would end it.
    if (!has_memory_for([this] {
          mutex_.held();
          look_at_time();
        }))
      give_up();
  }

  // Mutex held.
  void look_at_time() TW_REQUIRES(mutex_) {
    const bool silent = handshake_.state() == HandshakeState::kAwaitOpen;
    if (const Nanos end = began_ + listener_->patience_; !silent && now() < end) {
      timer_ = listener_->poller_.add_timer(end, Ref<Watcher>::share(this));
      return;
    }
    note(silent ? Incident::kHandshakeSilent : Incident::kHandshakeLate,
         {Code::kDeadlineExceeded,
          silent ? "it said nothing"
                 : text({"it took too long, in state ", name(handshake_.state())})});
    give_up();
  }

  void on_event(uint32_t, uint32_t) override {
    const Ref<PendingConnection> keep = Ref<PendingConnection>::share(this);
    Displaced displaced;
    const MutexLock lock(mutex_);
    if (watch_ == 0 || blocked_) return;
    // Where it stood is not known any more, and perhaps nothing watches its socket.
    if (!has_memory_for([&] {
          mutex_.held();
          go_on(displaced);
        }))
      give_up();
  }

  // Mutex held.
  void go_on(Displaced& displaced) TW_REQUIRES(mutex_) {
    const auto before = standing();
    while (!handshake_.finished()) {
      const auto out = handshake_.outgoing();
      const auto in = handshake_.space();
      const ssize_t n =
          !out.empty() ? ::send(socket_.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT)
                       : ::recv(socket_.get(), in.data(), in.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) {
        if (standing() != before) listener_->advance(*this, standing());
        return wait_for(out.empty() ? EPOLLIN : EPOLLOUT);
      }
      if (n < 0 || (n == 0 && out.empty())) {
        handshake_.closed();
        break;
      }
      const auto count = static_cast<size_t>(n);
      if (!(out.empty() ? handshake_.received(count) : handshake_.sent(count)).ok()) break;
    }
    if (!handshake_.done()) {
      note(handshake_.incident(), handshake_.failure());
      return give_up();
    }
    if (before != Standing::kProved) {
      client_ = handshake_.client().hello;
      peer_.caller = handshake_.client().caller;
      peer_.agent = handshake_.client().agent;
      peer_.stream_window = client_.stream_window;
      peer_.features = client_.features;
      listener_->advance(*this, Standing::kProved);
      if (Status status = begin_setup(); !status.ok()) return give_up_for(status);
    }
    set_up(displaced);
  }

  Status begin_setup() TW_REQUIRES(mutex_) {
    const auto kind = std::ranges::find(kinds_, handshake_.transport(), &Kind::code);
    const bool same_host = wire::same_host(listener_->runtime_.hello(), client_);
    peer_.same_host = peer_.same_host || same_host;
    auto setup = (*kind)->accept({same_host});
    if (!setup) return setup.status();
    kind_ = *kind;
    setup_ = std::move(*setup);
    return {};
  }

  // Mutex held.
  void set_up(Displaced& displaced) TW_REQUIRES(mutex_) {
    const auto next = setup_->go_on(socket_.get());
    if (!next) return give_up_for(next.status());
    switch (*next) {
      case Setup::Next::kRead:
        return wait_for(EPOLLIN);
      case Setup::Next::kWrite:
        return wait_for(EPOLLOUT);
      case Setup::Next::kBlocking:
        listener_->move_to_joining(*this, source_of(peer_), displaced.who);
        return run_blocking_task();
      case Setup::Next::kDone:
        break;
    }
    if (kind_->socket() == Kind::Socket::kTcp && !know_process()) return gone();
    finish();
    auto made = setup_->become(std::move(socket_));
    if (!made) {
      note(Incident::kHandshakeSetup, made.status());
      return give_up();
    }
    if (made->process) peer_.pidfd = std::move(made->process);
    become(std::move(made->transport));
  }

  // Mutex held. The kernel may take seconds for it, during which the socket is not watched.
  void run_blocking_task() TW_REQUIRES(mutex_) {
    auto blocking_tasks = listener_->runtime_.blocking_tasks();
    if (!blocking_tasks) return give_up();
    blocked_ = true;  // hang-ups are told even where nothing is waited for
    (*blocking_tasks)->add_timer(0, [self = Ref<PendingConnection>::share(this)] {
      // Many may be queued whose time is over.
      Setup* const setup = self->awaited();
      if (!setup || self->listener_->runtime_.leaving()) return;
      const bool through = has_memory_for([&] { setup->run_blocking(); });
      const MutexLock lock(self->mutex_);
      self->blocked_ = false;
      if (self->watch_ == 0) return;
      if (!through) return self->give_up();
      self->wait_for(EPOLLOUT);  // by the poller's thread again, which takes in links
    });
  }

  using Standing = Crowd<PendingConnection*>::Standing;
  Standing standing() const TW_REQUIRES(mutex_) {
    if (handshake_.done()) return Standing::kProved;
    return handshake_.state() == HandshakeState::kAwaitOpen ? Standing::kSilent : Standing::kSpoke;
  }

  // It went away while its transport was set up.
  void gone() TW_REQUIRES(mutex_) {
    note(Incident::kHandshakeLeft, {});
    give_up();
  }
  // Its transport cannot be set up.
  void give_up_for(const Status& why) TW_REQUIRES(mutex_) {
    switch (why.code()) {
      case Code::kUnavailable:
        return gone();
      case Code::kFailedPrecondition:  // the client has been told
        return give_up();
      case Code::kResourceExhausted:
        note(Incident::kBudgetDescriptors, why);
        return give_up();
      default:
        note(Incident::kHandshakeSetup, why);
        return give_up();
    }
  }

  void note(Incident incident, const Status& why) TW_REQUIRES(mutex_) {
    listener_->runtime_.audit().note(incident, peer_.name(), why.details());
  }

  void wait_for(uint32_t events) TW_REQUIRES(mutex_) {
    listener_->poller_.rearm(watch_, socket_.get(), events | EPOLLONESHOT);
  }

  // Mutex held. At once, though a blocking task may keep this object.
  void dismiss() TW_REQUIRES(mutex_) {
    finish();
    if (handshake_.admitted() && !std::exchange(settled_, true))
      listener_->admissions_.give_back(handshake_.session());
    if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
  }

  void give_up() TW_REQUIRES(mutex_) {
    dismiss();
    listener_->leave(*this);
  }

  // A client of this pid namespace is watched by its process. False: it has died.
  bool know_process() TW_REQUIRES(mutex_) {
    if (!wire::same_pids(listener_->runtime_.hello(), client_) || client_.pid == 0) return true;
    auto watched = watch_process(static_cast<int>(client_.pid));
    if (!watched) return false;
    peer_.pid = static_cast<int>(client_.pid);
    peer_.pidfd = std::move(*watched);
    return true;
  }

  // For the blocking task, during which nobody else touches it. Null: its time is over.
  Setup* awaited() {
    const MutexLock lock(mutex_);
    return watch_ == 0 ? nullptr : setup_.get();
  }

  // Mutex held.
  void become(std::unique_ptr<Transport> transport) TW_REQUIRES(mutex_) {
    listener_->arrived_({std::move(transport), std::move(peer_)});
    settled_ = true;
    listener_->admissions_.settle(handshake_.session());
    listener_->leave(*this);
  }

  const Ref<Listener> listener_;
  const Nanos began_;
  Mutex mutex_;  // guards what follows; taken before the listener's
  Fd socket_ TW_GUARDED_BY(mutex_);
  const std::vector<Kind*> kinds_;  // what it may become
  ServerHandshake handshake_ TW_GUARDED_BY(mutex_);
  // Once it has proved itself. During a blocking task nobody else touches the setup.
  Kind* kind_ TW_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<Setup> setup_ TW_GUARDED_BY(mutex_);
  bool blocked_ TW_GUARDED_BY(mutex_) = false;
  wire::Hello client_ TW_GUARDED_BY(mutex_);  // of the process that asked for the session
  Peer peer_ TW_GUARDED_BY(mutex_);
  Poller::Watch watch_ TW_GUARDED_BY(mutex_) = 0;
  Poller::Timer timer_ TW_GUARDED_BY(mutex_){};
  bool stopped_ TW_GUARDED_BY(mutex_) = false;
  bool settled_ TW_GUARDED_BY(mutex_) = false;  // its admission was used, or given back
};

size_t Listener::room() {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return std::clamp<size_t>(known ? limit.rlim_cur / 8 : 0, 32, 1024);
}

Listener::Listener(Runtime& runtime, Poller& poller, Arrived arrived, Nanos patience)
    : runtime_(runtime),
      poller_(poller),
      arrived_(std::move(arrived)),
      patience_(patience),
      joining_(room()) {}

Listener::~Listener() = default;

Result<int> Listener::listen_tcp(const std::string& host, int port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  const std::string service = std::to_string(port);
  if (const int error =
          getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &list);
      error != 0)
    return Status{Code::kInvalidArgument,
                  "not an address to listen on: " + host + ": " + gai_strerror(error)};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  Fd socket(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(Code::kResourceExhausted, "cannot create a socket", errno);
  const int on = 1, off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (list->ai_family == AF_INET6)
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), list->ai_addr, list->ai_addrlen) != 0)
    return errno_status(Code::kUnavailable, "cannot listen on " + host + ":" + service, errno);
  return open(std::move(socket), Kind::Socket::kTcp);
}

Result<std::string> Listener::listen_local() {
  auto folder = LocalFolder::make(runtime_.settings().runtime_dir);
  if (!folder) return folder.status();
  const std::string path = folder->socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return errno_status(Code::kUnavailable, "cannot listen on " + path, errno);
  {
    const MutexLock lock(mutex_);
    folders_.push_back(std::move(*folder));
  }
  auto opened = open(std::move(socket), Kind::Socket::kUnix);
  if (!opened) return opened.status();
  return path;
}

Result<int> Listener::open(Fd socket, Kind::Socket at) {
  if (::listen(socket.get(), 1024) != 0)
    return errno_status(Code::kUnavailable, "cannot listen", errno);
  int port = 0;
  if (at == Kind::Socket::kTcp) {
    const std::string address = socket_address(socket.get(), false);
    port = std::atoi(address.c_str() + address.rfind(':') + 1);
  }
  std::vector<Kind*> kinds;
  for (const auto& kind : runtime_.kinds())
    if (kind->socket() == at && kind->why_not().ok()) kinds.push_back(kind.get());
  const MutexLock lock(mutex_);
  if (closed_) return Status{Code::kFailedPrecondition, "the server is closed"};
  ListeningSocket listening{
      std::move(socket), {}, at, std::move(kinds), Crowd<PendingConnection*>(room())};
  sockets_.reserve(sockets_.size() + 1);  // once it is watched nothing may fail any more
  auto watch = poller_.watch(listening.fd.get(), EPOLLIN | EPOLLONESHOT, Ref<Watcher>::share(this),
                             static_cast<uint32_t>(sockets_.size()));
  if (!watch) return watch.status();
  listening.watch = *watch;
  sockets_.push_back(std::move(listening));
  return port;
}

Result<Admissions::Ticket> Listener::admit(const wire::Hello& client, int connections, Nanos ttl,
                                           std::string_view source) {
  auto ticket = admissions_.mint(connections, ttl, now(), source, client);
  if (ticket && ticket->evicted)
    runtime_.audit().note(Incident::kEvictedSession, source,
                          "another invitation that was not used yet gave way to the one for this");
  return ticket;
}

void Listener::introduce(const wire::SessionId& session, std::string caller, std::string agent) {
  admissions_.introduce(session, std::move(caller), std::move(agent));
}

void Listener::on_event(uint32_t tag, uint32_t) {
  bool goes_on = true;
  // Without memory for one it looks again, as for all that come.
  (void)has_memory_for([&] {
    for (int i = 0; goes_on && i < kAcceptsAtOnce; ++i) goes_on = accept(tag);
  });
  if (!goes_on) return;
  const MutexLock lock(mutex_);
  if (!closed_) poller_.rearm(sockets_[tag].watch, sockets_[tag].fd.get(), EPOLLIN | EPOLLONESHOT);
}

// Lets one stranger in. False: nobody else now, and the socket is looked after.
bool Listener::accept(size_t number) {
  Ref<PendingConnection> connection;
  PendingConnection::Displaced displaced;
  {
    const MutexLock lock(mutex_);
    if (closed_) return false;
    ListeningSocket& listening = sockets_[number];
    Fd socket(::accept4(listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EINTR || errno == ECONNABORTED)) return true;
    if (!socket && errno == EAGAIN) {
      poller_.rearm(listening.watch, listening.fd.get(), EPOLLIN | EPOLLONESHOT);
      return false;
    }
    if (!socket) {
      const Status why =
          errno_status(Code::kResourceExhausted, "cannot accept a connection", errno);
      runtime_.audit().note(Incident::kBudgetDescriptors, "", why.details());
      displaced.who = take(listening.crowd.victim(Crowd<PendingConnection*>::Standing::kSilent));
      if (!displaced.who) {
        poller_.add_timer(now() + kRetry, Ref<Watcher>::share(this));
        return false;
      }
    } else {
      Result<Peer> peer = Peer{};
      if (listening.at == Kind::Socket::kUnix)
        peer = unix_peer(socket.get());
      else
        peer->address = socket_address(socket.get(), true);
      if (!peer) {
        runtime_.audit().note(Incident::kHandshakeUser, "unix:", peer.status().details());
        return true;
      }
      if (listening.crowd.full()) displaced.who = take(listening.crowd.victim());
      const std::string source = source_of(*peer);
      connection = make_ref<PendingConnection>(Ref<Listener>::share(this), std::move(socket),
                                               std::move(*peer), listening.kinds);
      pending_.emplace(connection.get(), Entry{connection, number});
      if (!has_memory_for([&] { listening.crowd.enter(connection.get(), source); })) {
        pending_.erase(connection.get());
        return true;
      }
    }
  }
  if (connection && !has_memory_for([&] { connection->begin(); })) {
    connection->stop();
    leave(*connection);
  }
  return true;
}

// Mutex held. The caller lets go of it without.
Ref<Listener::PendingConnection> Listener::take(PendingConnection* connection) {
  const auto it = pending_.find(connection);
  if (it == pending_.end()) return nullptr;
  Ref<PendingConnection> taken = std::move(it->second.connection);
  crowd(it->second.socket).leave(connection);
  pending_.erase(it);
  return taken;
}

void Listener::advance(PendingConnection& connection,
                       Crowd<PendingConnection*>::Standing standing) {
  const MutexLock lock(mutex_);
  if (const auto it = pending_.find(&connection); it != pending_.end())
    crowd(it->second.socket).advance(&connection, standing);
}

// The socket is free for others. `displaced`: who has to give way, if anybody.
void Listener::move_to_joining(PendingConnection& connection, const std::string& source,
                               Ref<PendingConnection>& displaced) {
  const MutexLock lock(mutex_);
  const auto it = pending_.find(&connection);
  if (it == pending_.end()) return;
  crowd(it->second.socket).leave(&connection);
  it->second.socket = kJoining;
  if (joining_.full()) displaced = take(joining_.victim());
  joining_.enter(&connection, source);
  joining_.advance(&connection, Crowd<PendingConnection*>::Standing::kProved);
}

void Listener::on_timer() {
  const MutexLock lock(mutex_);
  for (const ListeningSocket& socket : sockets_)
    poller_.rearm(socket.watch, socket.fd.get(), EPOLLIN | EPOLLONESHOT);
}

void Listener::leave(PendingConnection& connection) {
  Ref<PendingConnection> last;
  const MutexLock lock(mutex_);
  last = take(&connection);
}

void Listener::close() {
  std::vector<ListeningSocket> sockets;
  std::unordered_map<PendingConnection*, Entry> pending;
  std::vector<LocalFolder> folders;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    sockets.swap(sockets_);
    pending.swap(pending_);
    folders.swap(folders_);
  }
  for (ListeningSocket& socket : sockets) {
    poller_.unwatch(socket.watch, socket.fd.get());
    // Children that were forked have it, too, and let nobody in.
    if (home_.here()) ::shutdown(socket.fd.get(), SHUT_RDWR);
  }
  for (auto& [key, entry] : pending) entry.connection->stop();
}

}  // namespace tw::meet
