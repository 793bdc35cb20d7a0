// Sessions that a server has minted over the bootstrap and that may still open connections.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "base/clock.h"
#include "base/status.h"
#include "link/secret.h"
#include "wire/handshake_frames.h"

namespace tw::link {

// Thread-safe. A session ends when its time is over; one that has admitted all its connections
// stays known until then, without its secret, so that a late comer can be told apart in the log. A
// full table refuses new sessions instead of dropping old ones: else whoever can reach the
// bootstrap could push out the sessions of others.
class Admissions {
 public:
  static constexpr size_t kCapacity = 4096;
  static constexpr int kMaxConnections = 64;
  static constexpr Nanos kMaxTtl = 3600 * kSecond;

  struct Ticket {
    wire::SessionId session;
    Secret secret;
  };

  explicit Admissions(size_t capacity = kCapacity) : capacity_(capacity) {}

  // Admits `connections` connections within `ttl`. INVALID_ARGUMENT (out of range),
  // RESOURCE_EXHAUSTED (table full), UNAVAILABLE (no randomness).
  Result<Ticket> mint(int connections, Nanos ttl, Nanos at = now());
  // The secret of a session that can still admit a connection; nothing is used up, so that whoever
  // only overheard the session id cannot spend it. UNAUTHENTICATED says why not, for the log and
  // not for the stranger.
  Result<Secret> find(const wire::SessionId& session, Nanos at = now());
  // One connection has proved that it knows the secret. UNAUTHENTICATED as for find.
  Status admit(const wire::SessionId& session, Nanos at = now());
  // Wipes and forgets what is over; mint does it too.
  void expire(Nanos at = now());
  // Sessions that the table holds.
  size_t size() const;

 private:
  struct Hash {
    size_t operator()(const wire::SessionId& session) const;
  };
  struct Entry {
    Secret secret;
    Nanos deadline;
    int connections;  // admitted in all
    int left;
  };

  Result<Entry*> find_live(const wire::SessionId& session, Nanos at);
  void expire_locked(Nanos at);

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<wire::SessionId, Entry, Hash> entries_;
};

}  // namespace tw::link
