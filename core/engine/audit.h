// SPDX-License-Identifier: Apache-2.0
// What peers did wrong: counted by kind and reason, and told in lines for a log.
//
// A stranger must not be able to fill a disk. So of each reason only so many lines are told at
// once; the others are counted, and a later line says how many they were.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "engine/event.h"
#include "engine/waiting.h"

namespace tw {

enum class Incident : uint8_t {
  // Strangers that did not become links.
  kHandshakeLeft,      // went away; ports are probed, so that no line is told
  kHandshakeSilent,    // sent nothing whole in time
  kHandshakeLate,      // took too long
  kHandshakeGarbage,   // spoke something else
  kHandshakeVersion,   // of the wire format, or a transport that this socket is not for
  kHandshakeSession,   // unknown, expired or used up
  kHandshakeProof,     // does not know the secret
  kHandshakeUser,      // another user at the socket of shared memory
  kHandshakeSetup,     // the transport could not be set up
  kEvictedStranger,    // gave way to another one where too many were
  kEvictedSession,     // of Open, gave way to another one in a full table
  kBudgetDescriptors,  // this process has none left
  kProtocolBroken,     // a link that ended by its peer's mistake
  kBudgetLink,         // a link that ended because its peer wanted too much
  kBudgetStalled,      // a link that ended because its peer took nothing of what waited for it
  kBudgetArena,        // a link that gets copies: its peer, or all, hold too much of the arena
  kBudgetMapping,      // a link on which memory could not be mapped, and is accessed by frames
  kHostSilent,         // a link that ended because its peer's host answers nothing any more
};
inline constexpr size_t kIncidents = 18;

// The labels of an incident; both are among a few fixed words.
struct IncidentName {
  const char* kind;
  const char* reason;
};
IncidentName name_of(Incident incident);

// Thread-safe; its lock is the innermost of all.
class Audit {
 public:
  // Of one reason so many lines at once, ...
  static constexpr int kBurst = 5;
  // ... if it is not one that all links of a process are likely to share: that is told once, ...
  static constexpr int burst_of(Incident incident) {
    return incident == Incident::kBudgetArena || incident == Incident::kBudgetMapping ? 1 : kBurst;
  }
  // ... and then one each time.
  static constexpr Nanos kPace = 10 * kSecond;

  struct Line {
    Incident incident{};
    std::string peer;   // an address as gRPC writes it
    std::string what;   // a sentence; may hold bytes that a peer chose
    uint64_t more = 0;  // incidents of this reason that were not told of since the last line
  };

  // From any thread, with any lock held.
  void note(Incident incident, std::string_view peer, std::string_view what,
            Nanos at = now()) noexcept;
  uint64_t count(Incident incident) const {
    return entries_[static_cast<size_t>(incident)].count.load(std::memory_order_relaxed);
  }
  // The next line, for one thread. What was not told is told at the end of its pace, if nothing
  // else of its reason has been until then.
  Waited next(Line& line, Nanos deadline);
  // What is still to be told is told; then next() says kClosed.
  void close();

 private:
  // Without anybody in next().
  static constexpr size_t kMostQueued = 64;

  struct Entry {
    std::atomic<uint64_t> count{0};
    // Guarded by the mutex:
    Nanos full_at = 0;  // when all of the burst is to be had again
    uint64_t untold = 0;
    std::string peer, what;  // of the last one that was not told
  };

  bool may_tell(size_t incident, Nanos at) TW_REQUIRES(mutex_);
  // A line about what was not told, if it is due. Else when the first one will be.
  Nanos take_untold(Line& line, Nanos at) TW_REQUIRES(mutex_);

  std::array<Entry, kIncidents> entries_;
  Event changed_;
  Mutex mutex_;  // guards what follows
  std::deque<Line> queue_ TW_GUARDED_BY(mutex_);
  bool closed_ TW_GUARDED_BY(mutex_) = false;
};

}  // namespace tw
