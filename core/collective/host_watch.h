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
  // The links outlive it. Those whose transport tells nothing of a host are not looked at.
  // `limit`: how long a host may answer nothing; 0: for ever.
  HostWatch(const std::vector<Link*>& links, Nanos limit);

  // By whoever waits, again and again: asks the hosts that are quiet, and loses all links to one
  // that is silent. Between hosts it costs a system call for each link, and else none.
  void look();

 private:
  struct Host {
    std::string address;
    std::vector<Link*> links;
    Silence silence;
  };

  const Nanos every_;
  std::atomic<Nanos> next_{0};
  Mutex mutex_;  // guards what follows; no other lock is taken inside
  std::vector<Host> hosts_ TW_GUARDED_BY(mutex_);
};

}  // namespace tw::collective
