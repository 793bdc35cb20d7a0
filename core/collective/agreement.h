// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of a group call the same operations in the same order, where no message between
// two of them says so: of ranks that disagree, each may wait for another one to send first. So who
// waits for long tells the others what it is at.
//
// No circle of ranks that wait for each other is left. Of the ranks in it, take one whose operation
// is the earliest. The rank that it waits for has begun that operation, too, is told, and compares.
// Had both called the same, that rank would send what is waited for. Who waits for a rank has a
// link with it, perhaps one that was made after it told others: so it tells again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "collective/collective_call.h"

namespace tw::collective {

// An operation of the group, counted from 1.
struct NumberedCall {
  uint64_t sequence = 0;  // 0: none
  CollectiveCall call;
};

class Agreement {
 public:
  explicit Agreement(int ranks) : heard_(static_cast<size_t>(ranks)) {}

  // ---- by the thread of this rank's operations ----

  // This rank begins one.
  void begin(const NumberedCall& mine) { own_[mine.sequence % kKept] = current_ = mine; }
  // The operation is over: nobody is told that this rank waits in it.
  void end() { current_ = {}; }
  // What the others have yet to be told, once it has waited for long: each operation once, and
  // again when this rank has other links.
  std::optional<NumberedCall> untold(size_t links);
  // Another rank, which has waited in an operation that this one has begun, and called it
  // otherwise.
  struct Odd {
    int rank;
    CollectiveCall mine, theirs;
  };
  std::optional<Odd> odd() const;

  // ---- by any thread ----

  // Another rank waits there.
  void heard(int rank, const NumberedCall& theirs);

 private:
  // Of this rank's operations: whoever only sends may be ahead of those that wait.
  static constexpr size_t kKept = 64;

  std::array<NumberedCall, kKept> own_;
  NumberedCall current_;
  struct Told {
    uint64_t sequence = 0;
    size_t links = 0;
    bool operator==(const Told&) const = default;
  } told_;
  std::atomic<bool> any_{false};
  mutable Mutex mutex_;  // guards what follows; no other lock is taken inside
  std::vector<NumberedCall> heard_ TW_GUARDED_BY(mutex_);  // by rank, the last one
};

}  // namespace tw::collective
