// The server's way to links: listening sockets, and strangers on them until they have proved a
// secret.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "link/connect.h"
#include "link/local_folder.h"

namespace tw::link {

// Thread-safe.
class Listener final : public Watcher {
 public:
  // `arrived` is called by the thread in the poller's poll().
  using Arrived = std::function<void(Connected)>;

  // `patience`: how long a stranger may take for the handshake.
  Listener(Runtime& runtime, Poller& poller, Arrived arrived, Nanos patience = 5 * kSecond);
  ~Listener() override;

  // The bound port, of the addresses tcp: and, where this process has RDMA, verbs:. UNAVAILABLE:
  // the address is taken or not this host's. INVALID_ARGUMENT: no address.
  Result<int> listen_tcp(const std::string& host, int port);
  // Path of a socket in a fresh folder that only this user may enter; both are removed by close().
  Result<std::string> listen_local();
  // Admits `connections` connections of the process that sent `client` within `ttl`.
  Result<Admissions::Ticket> admit(const wire::Hello& client, int connections, Nanos ttl);
  // What is known of the session's client: see Peer.
  void introduce(const wire::SessionId& session, std::string caller, std::string agent);
  void close();

 private:
  class Arrival;
  struct Door {
    Fd socket;
    Poller::Watch watch;
    std::vector<wire::Transport> transports;  // what its connections may become
  };
  struct Client {
    wire::Hello hello;
    Nanos until;
    std::string caller, agent;
  };

  // Strangers that may be at the door at a time; more are turned away at once.
  static constexpr size_t kMaxArrivals = 256;
  // Without descriptors to accept with, it tries again after this.
  static constexpr Nanos kRetry = 100 * kMillisecond;

  Result<int> open(Fd socket, std::vector<wire::Transport> transports);
  void on_event(uint32_t tag, uint32_t events) override;
  void on_timer() override;
  void leave(Arrival& arrival);
  Client client(const wire::SessionId& session);

  Runtime& runtime_;
  Poller& poller_;
  const Arrived arrived_;
  const Nanos patience_;
  Admissions admissions_;

  std::mutex mutex_;  // guards what follows; no watcher is called inside
  std::vector<Door> doors_;
  std::unordered_map<Arrival*, Ref<Arrival>> arrivals_;
  std::vector<std::pair<wire::SessionId, Client>> clients_;  // in order of their end
  std::vector<LocalFolder> folders_;
  bool closed_ = false;
};

}  // namespace tw::link
