// SPDX-License-Identifier: Apache-2.0
// The server's way to links: listening sockets, and strangers on them until they have proved a
// secret.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

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

  // The bound port, for all kinds of transports that come by the TCP door and that this process
  // has. UNAVAILABLE: the address is taken or not this host's. INVALID_ARGUMENT: no address.
  Result<int> listen_tcp(const std::string& host, int port);
  // Path of a socket in a fresh folder that only this user may enter; both are removed by close().
  Result<std::string> listen_local();
  // Admits `connections` connections of the process that sent `client` within `ttl`. source: who
  // asked, as far as can be told.
  Result<Admissions::Ticket> admit(const wire::Hello& client, int connections, Nanos ttl,
                                   std::string_view source = {});
  // What is known of the session's client: see Peer.
  void introduce(const wire::SessionId& session, std::string caller, std::string agent);
  // Strangers that may stand at each door at a time: an eighth of the descriptors that this process
  // may have, 32 to 1024.
  static size_t room();
  void close();

 private:
  class Arrival;
  struct Door {
    Fd socket;
    Poller::Watch watch;
    Kind::Door at;
    std::vector<Kind*> kinds;  // what its connections may become
    Crowd<Arrival*> crowd;
  };
  struct Entry {
    Ref<Arrival> arrival;
    size_t door;  // or kJoining
  };

  // Where those stand whose setup takes long.
  static constexpr size_t kJoining = SIZE_MAX;
  // The first frame has to be there within this.
  static constexpr Nanos kFirstFrame = kSecond;
  // Then others are looked after.
  static constexpr int kAcceptsAtOnce = 64;
  // Without descriptors to accept with, it tries again after this.
  static constexpr Nanos kRetry = 100 * kMillisecond;

  Result<int> open(Fd socket, Kind::Door at);
  void on_event(uint32_t tag, uint32_t events) override;
  void on_timer() override;
  bool accept(size_t door);
  void leave(Arrival& arrival);
  void advance(Arrival& arrival, Crowd<Arrival*>::Stage stage);
  Ref<Arrival> move_to_joining(Arrival& arrival, const std::string& source);
  Ref<Arrival> take(Arrival* arrival) TW_REQUIRES(mutex_);
  Crowd<Arrival*>& crowd(size_t door) TW_REQUIRES(mutex_) {
    return door == kJoining ? joining_ : doors_[door].crowd;
  }

  Runtime& runtime_;
  Poller& poller_;
  const Arrived arrived_;
  const Nanos patience_;
  Admissions admissions_;

  Mutex mutex_;  // guards what follows; no watcher is called inside
  std::vector<Door> doors_ TW_GUARDED_BY(mutex_);
  Crowd<Arrival*> joining_ TW_GUARDED_BY(mutex_);
  std::unordered_map<Arrival*, Entry> arrivals_ TW_GUARDED_BY(mutex_);
  std::vector<LocalFolder> folders_ TW_GUARDED_BY(mutex_);
  bool closed_ TW_GUARDED_BY(mutex_) = false;
};

}  // namespace tw::meet
