// SPDX-License-Identifier: Apache-2.0
// The worker's end of the data plane: admits peers, takes their requests and answers each when
// TensorFlow has what it asks for.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "core.h"
#include "planned_sends.h"
#include "wire.h"
#include "worker_service.h"

namespace tensorwire {

class Served;

class DataServer {
 public:
  // `host`: the name by which the cluster knows this worker. The tcp listener is bound to all
  // addresses of the host, as TensorFlow's gRPC port is, or on loopback when that is its name.
  // `planned`: null, where nothing is.
  static absl::Status start(WorkerService* worker, const std::string& host,
                            std::shared_ptr<PlannedSends> planned,
                            std::unique_ptr<DataServer>* out);
  // Ends all calls. TensorFlow does not destroy servers that have been started.
  ~DataServer();

  // Invites the process that sent `hello`; `out`: a welcome for it.
  absl::Status admit(const std::string& hello, std::string* out);

 private:
  friend class Served;
  DataServer(WorkerService* worker, std::shared_ptr<PlannedSends> planned)
      : worker_(worker), planned_(std::move(planned)) {}
  void dispatch();
  void take(tw_server_call* call);
  void recv_tensor(const std::shared_ptr<Served>& served, const wire::Request& request);
  void recv_local(const std::shared_ptr<Served>& served,
                  const tensorflow::Rendezvous::ParsedKey& key);
  void recv_buf(const std::shared_ptr<Served>& served, const wire::Request& request);
  void watch();
  void forget(uint64_t id);

  WorkerService* const worker_;
  const std::shared_ptr<PlannedSends> planned_;
  tw_server* server_ = nullptr;
  std::vector<std::string> addresses_;
  std::thread dispatcher_;
  // Tells of requests that are waited for in vain: cancelled, or their peer is lost.
  tw_events* cut_ = nullptr;
  std::thread watcher_;

  std::mutex mutex_;  // guards what follows
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Served>> served_;
};

}  // namespace tensorwire
