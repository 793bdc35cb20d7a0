// SPDX-License-Identifier: Apache-2.0
// The other hosts of a group: one that is cut off, or without power, says so to nobody. While a
// rank waits it has each of them acknowledge something now and then.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "link/link.h"
#include "link/silence.h"

namespace tw::collective {

// Thread-safe.
class HostWatch {
 public:
  // `limit`: how long a host may answer nothing; 0: for ever.
  explicit HostWatch(Nanos limit);

  // A link, which outlives it, once or more often. One whose transport tells nothing of a host is
  // not looked at.
  void add(Link& link);

  // By whoever waits, again and again: asks the hosts that are quiet, and loses all links to one
  // that is silent. Between hosts it costs a system call for each link, and else none.
  void look();

 private:
  struct Host {
    std::string address;
    std::vector<Link*> links;
    Silence silence;
  };

  const Nanos limit_, every_;
  std::atomic<Nanos> next_{0};
  Mutex mutex_;  // guards what follows; no other lock is taken inside
  std::vector<Host> hosts_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::collective
