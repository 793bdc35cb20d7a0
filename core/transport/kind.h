// SPDX-License-Identifier: Apache-2.0
// The kinds of transports: what each asks of its process, and how two ends that know each other
// make one of a connection. docs/new-transport.md explains how to write another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fact.h"
#include "base/fd.h"
#include "base/settings.h"
#include "base/status.h"
#include "memory/arena.h"
#include "transport/transport.h"

namespace tw {

// What a transport may use of its process. Lives as long as the process.
struct TransportEnvironment {
  const Settings& settings;
  Arena& arena;
  // The poller of the background's thread. UNAVAILABLE, RESOURCE_EXHAUSTED.
  std::function<Result<Poller*>()> background;
};

// Makes a transport of a connection on which both ends have proved who they are. Either end has
// one, and drives it without waiting:
//   kRead, kWrite: go_on() again once the socket is readable, writable
//   kBlocking:       run_blocking(), for which the kernel may take seconds, then go_on() again
//   kDone:         become(), once
class Setup {
 public:
  virtual ~Setup() = default;

  enum class Next : uint8_t { kRead, kWrite, kBlocking, kDone };
  // UNAVAILABLE: the peer went away. FAILED_PRECONDITION: the two cannot be joined in this way; a
  // server has told its client. RESOURCE_EXHAUSTED. INTERNAL: the peer broke the protocol.
  virtual Result<Next> go_on(int socket) = 0;
  virtual void run_blocking() {}

  struct Made {
    std::unique_ptr<Transport> transport;
    Fd process;  // readable once the peer's process has died; none: the setup does not know it
  };
  virtual Result<Made> become(Fd socket) = 0;
};

// What the ends know of each other before a setup.
struct Meeting {
  bool same_host = false;  // they run under one kernel
};

// One kind; a process has one object for each. Thread-safe.
class Kind {
 public:
  virtual ~Kind() = default;

  // In addresses ("<name>:<where>"), settings, statistics and logs.
  virtual std::string_view name() const = 0;
  // In the handshake.
  virtual uint16_t code() const = 0;
  // By which of a server's sockets its connections come: the unix one, for processes of one user
  // and host, or the TCP one.
  enum class Socket : uint8_t { kUnix, kTcp };
  virtual Socket socket() const = 0;
  // Whether it is chosen among; else it is for tests, which name it in an address.
  virtual bool chosen() const { return true; }
  // Whether its links depend on more than the two processes, so that they may fail where those of
  // another kind do not.
  virtual bool fragile() const { return false; }
  // Whether large segments stay in the sender's arena until the receiver maps or fetches them
  // (Bulk::kMap, kRead), so that nothing but want of room makes the sender copy one.
  virtual bool lends() const { return false; }

  // Ok, or why this process cannot have links of this kind, and what to do about it.
  virtual Status why_not() { return {}; }
  virtual Result<std::unique_ptr<Setup>> offer(const Meeting& meeting) = 0;   // the client's
  virtual Result<std::unique_ptr<Setup>> accept(const Meeting& meeting) = 0;  // the server's

  // The arena has dropped slabs.
  virtual void slabs_dropped() {}
  // What users can set for it alone; read ahead of everything else, as settings_from_environment().
  virtual Status read_settings() { return {}; }
  virtual void each_setting(const VisitSetting&) const {}

  // What this host offers to it. `checks`: what doctor tells of it, each a check() (base/check.h).
  virtual Facts facts() { return {}; }
};

// All that this build knows, best first.
std::vector<std::unique_ptr<Kind>> make_kinds(const TransportEnvironment& environment);

}  // namespace tw
