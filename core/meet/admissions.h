// SPDX-License-Identifier: Apache-2.0
// Sessions that a server has minted over the bootstrap and that may still open links.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "meet/secret.h"
#include "wire/handshake_frames.h"
#include "wire/hello.h"

namespace tw::meet {

// Thread-safe. A session is forgotten when the last of its connections has become a link, or its
// time is over. A full table gives up the oldest session of the source that has the most: whoever
// can reach the bootstrap may ask for as many as it likes, and pushes out its own.
class Admissions {
 public:
  static constexpr size_t kCapacity = 4096;
  static constexpr int kMaxConnections = 64;
  static constexpr Nanos kMaxTtl = 3600 * kSecond;

  struct Ticket {
    wire::SessionId session;
    Secret secret;
    bool evicted = false;  // another session gave way to it
  };

  // Whom a session is for.
  struct Guest {
    wire::Hello hello;
    std::string caller, agent;  // see Peer
  };

  explicit Admissions(size_t capacity = kCapacity) : capacity_(capacity) {}

  // Admits `connections` connections within `ttl`. source: who asked, as far as can be told;
  // client: its Hello. INVALID_ARGUMENT (out of range), UNAVAILABLE (no randomness).
  Result<Ticket> mint(int connections, Nanos ttl, Nanos at = now(), std::string_view source = {},
                      const wire::Hello& client = {});
  // Admits all connections, whenever they come, of a session that both ends have made up by
  // themselves.
  void expect(const wire::SessionId& session, const Secret& secret, const Guest& guest);
  // What else is known of whom a session is for.
  void introduce(const wire::SessionId& session, std::string caller, std::string agent);
  // The secret of a session that can still admit a connection; nothing is used up, so that whoever
  // only overheard the session id cannot spend it. UNAUTHENTICATED says why not, for the log and
  // not for the stranger.
  Result<Secret> find(const wire::SessionId& session, Nanos at = now());
  // One connection has proved that it knows the secret: who asked for the session. Either settle()
  // or give_back() follows. UNAUTHENTICATED as for find.
  Result<Guest> admit(const wire::SessionId& session, Nanos at = now());
  // It has become a link.
  void settle(const wire::SessionId& session);
  // It has not, and the session may admit another one in its place.
  void give_back(const wire::SessionId& session);
  // Sessions that the table holds.
  size_t size() const;

 private:
  struct Hash {
    size_t operator()(const wire::SessionId& session) const;
  };
  // Sessions of each source, oldest first.
  using Sources = std::map<std::string, std::list<wire::SessionId>, std::less<>>;
  struct Entry {
    Secret secret;
    Guest guest;
    Nanos deadline;
    int connections;  // admitted in all
    int left;         // to be admitted
    int pending = 0;  // admitted, but no links yet
    Sources::iterator source;
    std::list<wire::SessionId>::iterator place;
  };
  using Entries = std::unordered_map<wire::SessionId, Entry, Hash>;

  void enter(const wire::SessionId& session, const Secret& secret, int connections, Nanos deadline,
             std::string_view source, const Guest& guest) TW_REQUIRES(mutex_);
  Result<Entry*> find_live(const wire::SessionId& session, Nanos at) TW_REQUIRES(mutex_);
  void forget(Entries::iterator entry) TW_REQUIRES(mutex_);
  void expire_locked(Nanos at) TW_REQUIRES(mutex_);
  void evict() TW_REQUIRES(mutex_);

  const size_t capacity_;
  mutable Mutex mutex_;  // guards what follows
  Entries entries_ TW_GUARDED_BY(mutex_);
  Sources sources_ TW_GUARDED_BY(mutex_);
  std::set<std::pair<Nanos, wire::SessionId>> ends_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::meet
