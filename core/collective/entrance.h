// SPDX-License-Identifier: Apache-2.0
// Where the other ranks of a group reach this one, and how this one reaches them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meet/connect.h"
#include "meet/listener.h"
#include "process/runtime.h"
#include "route/policy.h"

namespace tw::collective {

// What a rank shows at another one's entrance.
struct Pass {
  wire::SessionId session{};
  meet::Secret secret;
};

// Of rank `guest` at the entrance of rank `host`: both derive it from what only the group knows.
Pass pass_of(const wire::Nonce& key, int host, int guest);

// Where a rank is.
struct RankAddress {
  wire::Hello hello;
  wire::InstanceId instance{};
  std::vector<std::string> places;  // <kind>:<where>, best first
};

// Sockets that are open until it goes. Whoever comes has to show a pass that was admitted.
class Entrance {
 public:
  // `arrived` is called by the runtime's background; the peer's agent says which rank it is.
  Entrance(Runtime& runtime, Poller& poller, std::function<void(meet::Connected)> arrived);
  Entrance(const Entrance&) = delete;
  Entrance& operator=(const Entrance&) = delete;
  ~Entrance() { listener_->close(); }

  // Opens what links of this process's kinds come by. `host`: where ranks of other hosts come to.
  Status open(const route::Policy& policy, const std::string& host);
  // <kind>:<where>, best first.
  const std::vector<std::string>& places() const { return places_; }
  // A rank, with a pass that is made for it.
  Result<Pass> admit(int guest, const wire::Hello& hello, Nanos time);
  // All that come with this one, however late.
  void admit(int guest, const wire::Hello& hello, const Pass& pass);

 private:
  Runtime& runtime_;
  const Ref<meet::Listener> listener_;
  std::vector<std::string> places_;
};

// Connects to a rank. The text of an error says how each transport failed. CANCELLED: interrupted.
Result<meet::Connected> enter(Runtime& runtime, const route::Policy& policy, int host,
                              const RankAddress& address, const Pass& pass, const Wait& wait);

}  // namespace tw::collective
