// SPDX-License-Identifier: Apache-2.0
// The server's way to links: listening sockets, and strangers on them until they have proved a
// secret.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "meet/connect.h"
#include "meet/crowd.h"
#include "process/local_folder.h"

namespace tw::meet {

// Thread-safe.
class Listener final : public Watcher {
 public:
  // `arrived` is called by the thread in the poller's poll().
  using Arrived = std::function<void(Connected)>;

  // `patience`: how long a stranger may take until it has become a link.
  Listener(Runtime& runtime, Poller& poller, Arrived arrived, Nanos patience = 5 * kSecond);
  ~Listener() override;

  // The bound port, for all kinds of transports that come by TCP and that this process
  // has. UNAVAILABLE: the address is taken or not this host's. INVALID_ARGUMENT: no address.
  Result<int> listen_tcp(const std::string& host, int port);
  // Path of a socket in a fresh folder that only this user may enter; both are removed by close().
  Result<std::string> listen_local();
  // Admits `connections` connections of the process that sent `client` within `ttl`. source: who
  // asked, as far as can be told.
  Result<Admissions::Ticket> admit(const wire::Hello& client, int connections, Nanos ttl,
                                   std::string_view source = {});
  // See Admissions::expect().
  void expect(const wire::SessionId& session, const Secret& secret,
              const Admissions::Guest& guest) {
    admissions_.expect(session, secret, guest);
  }
  // What is known of the session's client: see Peer.
  void introduce(const wire::SessionId& session, std::string caller, std::string agent);
  // Strangers that may be at each listening socket at a time: an eighth of the descriptors that
  // this process may have, 32 to 1024.
  static size_t room();
  void close();

 private:
  class PendingConnection;
  struct ListeningSocket {
    Fd fd;
    Poller::Watch watch;
    Kind::Socket at;
    std::vector<Kind*> kinds;  // what its connections may become
    Crowd<PendingConnection*> crowd;
  };
  struct Entry {
    Ref<PendingConnection> connection;
    size_t socket;  // or kJoining
  };

  // In place of a socket: those whose setup takes long.
  static constexpr size_t kJoining = SIZE_MAX;
  // The first frame has to be there within this.
  static constexpr Nanos kFirstFrame = kSecond;
  // Then others are looked after.
  static constexpr int kAcceptsAtOnce = 64;
  // Without descriptors to accept with, it tries again after this.
  static constexpr Nanos kRetry = 100 * kMillisecond;

  Result<int> open(Fd socket, Kind::Socket at);
  void on_event(uint32_t tag, uint32_t events) override;
  void on_timer() override;
  bool accept(size_t socket);
  void leave(PendingConnection& connection);
  void advance(PendingConnection& connection, Crowd<PendingConnection*>::Standing standing);
  void move_to_joining(PendingConnection& connection, const std::string& source,
                       Ref<PendingConnection>& displaced);
  Ref<PendingConnection> take(PendingConnection* connection) TW_REQUIRES(mutex_);
  Crowd<PendingConnection*>& crowd(size_t socket) TW_REQUIRES(mutex_) {
    return socket == kJoining ? joining_ : sockets_[socket].crowd;
  }

  Runtime& runtime_;
  Poller& poller_;
  const Arrived arrived_;
  const Nanos patience_;
  const Birthplace home_;
  Admissions admissions_;

  Mutex mutex_;  // guards what follows; no watcher is called inside
  std::vector<ListeningSocket> sockets_ TW_GUARDED_BY(mutex_);
  Crowd<PendingConnection*> joining_ TW_GUARDED_BY(mutex_);
  std::unordered_map<PendingConnection*, Entry> pending_ TW_GUARDED_BY(mutex_);
  std::vector<LocalFolder> folders_ TW_GUARDED_BY(mutex_);
  bool closed_ TW_GUARDED_BY(mutex_) = false;
};

}  // namespace tw::meet
