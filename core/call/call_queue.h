// SPDX-License-Identifier: Apache-2.0
// The calls of one link that nobody has had time for yet. Each is kept as what the peer has sent
// for it, so that a peer that starts calls without end costs hardly more than what it sends.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/clock.h"
#include "base/status.h"
#include "link/window.h"
#include "message/parcel.h"
#include "wire/call_header.h"

namespace tw {

// The header of a call's message. INTERNAL: it is none, or the message has segments without being
// one of the user's: they would cost no credit.
Result<wire::CallHeaderView> header_of(const Parcel& message);

// Not thread-safe.
class CallQueue {
 public:
  // Most calls that wait.
  static constexpr size_t kMost = 10'240;

  struct Entry {
    Entry() = default;
    Entry(size_t credit, Nanos until) : window(credit), deadline(until) {}
    // The first one starts the call; the others are messages of the user, or could not be received.
    ParcelQueue messages;
    ReceiveWindow window{0};
    Nanos deadline = kForever;
    bool ended = false;  // the client has sent its last message
  };

  // False: it is full.
  bool add(Ref<Parcel> start, Nanos deadline, size_t window, bool ended);
  // A further message of a call that waits; a cancellation takes the call out. False: no call of
  // that stream waits.
  Result<bool> add_to(Ref<Parcel>& message);
  // Takes out the one that has waited longest; false: none waits.
  bool pop(Entry& entry);
  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kMostGone = 64;

  void forget_gone();

  std::unordered_map<uint64_t, Entry> entries_;  // by stream
  std::deque<uint64_t> order_;                   // streams; some may have been cancelled
};

}  // namespace tw
