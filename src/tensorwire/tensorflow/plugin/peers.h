// The ways to other workers: for each, a link, or TensorFlow's own gRPC when there can be none.
//
// A worker is known by its name and by the worker cache through which TensorFlow reaches it, since
// two clusters in one process may use the same names. A way is found out once, by whoever needs
// it first; when its link has died it is found out anew, so that a restarted worker is met as what
// it has become. Where links by RDMA keep failing, the next best way is taken for a while.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace tensorwire {

// A link that lives as long as anybody holds it.
class PeerLink {
 public:
  explicit PeerLink(tw_link* link);
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  tw_link* get() const { return link_; }
  bool alive() const { return core().link_alive(link_) != 0; }
  By by() const { return by_; }
  const char* transport() const { return core().link_transport(link_); }
  std::chrono::steady_clock::duration age() const {
    return std::chrono::steady_clock::now() - made_;
  }

 private:
  tw_link* const link_;
  const By by_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
};

struct Way {
  enum Kind { kUnknown, kLink, kGrpc, kNone };
  Kind kind = kUnknown;
  std::shared_ptr<PeerLink> link;  // kLink
  // kLink: when a better way may be had.
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  absl::Status why;  // kGrpc, kNone (a transport that the user requires cannot be had)
};

using SharedWorkerCache = std::shared_ptr<tensorflow::WorkerCacheInterface>;

// What is known now; kUnknown: find_way() will tell.
Way known_way(const SharedWorkerCache& workers, const std::string& task);
// Calls `then` once, on any thread, soon or when the peer was asked: within ten seconds.
void find_way(const SharedWorkerCache& workers, const std::string& task,
              std::function<void(Way)> then);

// How many workers' ways are known, or are being found out.
size_t peers_known();

}  // namespace tensorwire
