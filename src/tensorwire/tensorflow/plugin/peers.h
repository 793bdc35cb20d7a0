// SPDX-License-Identifier: Apache-2.0
// The ways to other workers: for each, a link, or TensorFlow's own gRPC when there can be none.
//
// A worker is known by its name and by the worker cache through which TensorFlow reaches it, since
// two clusters in one process may use the same names. A way is found out by whoever needs it first;
// when its link has died it is found out anew, so that a restarted worker is met as what it has
// become. Where links by RDMA keep failing, the next best way is taken for a while. A way that is
// not the best goes on being used while it is found out in the background whether there is a better
// one by now.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core.h"
#include "planned_receives.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "transports.h"

namespace tensorwire {

// A link that lives as long as anybody holds it.
class PeerLink {
 public:
  PeerLink(tw_link* link, Transport& by);
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  tw_link* get() const { return link_; }
  bool alive() const { return core().peer_alive(link_) != 0; }
  Transport& by() const { return by_; }
  // Null: nothing is planned in this process.
  PlannedReceives* planned() const { return planned_.get(); }

 private:
  tw_link* const link_;
  Transport& by_;
  const std::shared_ptr<PlannedReceives> planned_;
};

struct Way {
  // kNone: a transport that the user requires cannot be had.
  enum Kind { kLink, kGrpc, kNone };
  enum Reason { kNoPlugin, kNoLink };
  Kind kind = kGrpc;
  std::shared_ptr<PeerLink> link;  // kLink
  Reason reason = kNoLink;         // kGrpc, kNone
  absl::Status why;                // the same
};

using SharedWorkerCache = std::shared_ptr<tensorflow::WorkerCacheInterface>;

// What is known; nothing: find_way() will tell.
std::optional<Way> known_way(const SharedWorkerCache& workers, const std::string& task);
// Calls `then` once, on any thread: at once, or when the worker was asked. It has 5 s to answer,
// and each address that it offers has 5 s to let a link be made.
void find_way(const SharedWorkerCache& workers, const std::string& task,
              std::function<void(Way)> then);

// How many workers' ways are known, or are being found out.
size_t peers_known();

// An error as TensorFlow's gRPC words it: strategies recognise a failed worker by the mention of
// its name.
std::string from_remote(absl::string_view details, const std::string& task, absl::string_view what);

}  // namespace tensorwire
