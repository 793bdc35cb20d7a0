// SPDX-License-Identifier: Apache-2.0
// RDMA for one process: the library, the devices that links use, and their domains.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/ref.h"
#include "base/status.h"
#include "engine/poller.h"
#include "transport/verbs/completion_queue.h"
#include "transport/verbs/device.h"
#include "transport/verbs/domain.h"
#include "transport/verbs/settings.h"

namespace tw::verbs {

// A rail and the opened device behind it.
struct OpenRail {
  Rail rail;
  Ref<Domain> domain;
};

// Thread-safe. One for each process and trust domain.
class Context final : public RefCounted {
 public:
  // Chooses and opens. The status says why there is none: no library, no devices, what was asked
  // for is not there.
  static Result<Ref<Context>> open(const Library& library, const Settings& settings,
                                   Poller& poller);

  const Settings& settings() const { return settings_; }
  CompletionQueues& completion_queues() { return completion_queues_; }
  // What links are made of now: chosen again after a port or a device has changed. Several: a
  // link's chunks go over all of them.
  Result<std::vector<OpenRail>> rails();
  // The arena has dropped slabs.
  void slabs_dropped();
  // Over all domains.
  DomainStats stats() const;

 private:
  class Changes;
  Context(const Library& library, const Settings& settings, Poller& poller);
  ~Context() override;
  Status choose() TW_REQUIRES(mutex_);
  Result<Ref<Domain>> domain_of(const std::string& device) TW_REQUIRES(mutex_);

  const Library& library_;
  const Settings settings_;
  Poller& poller_;
  CompletionQueues completion_queues_{poller_, settings_.cqs};
  Ref<Changes> changes_;  // tells of events of the domains
  mutable Mutex mutex_;
  std::vector<OpenRail> rails_ TW_GUARDED_BY(mutex_);
  std::vector<Ref<Domain>> domains_ TW_GUARDED_BY(mutex_);  // not lost
};

}  // namespace tw::verbs
