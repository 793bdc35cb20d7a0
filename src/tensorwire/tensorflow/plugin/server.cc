// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "allocator.h"
#include "bootstrap.h"
#include "collective.h"
#include "data_server.h"
#include "devices.h"
#include "meeting.h"
#include "meeting_place.h"
#include "rendezvous.h"
#include "settings.h"
#include "statistics.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

// Answers as TensorFlow's worker does, and greets peers that have the plugin.
class Worker final : public tf::GrpcWorker, public WorkerService {
 public:
  using GrpcWorker::GrpcWorker;

  // Before that, and when there is none, peers are left to gRPC.
  void serve(DataServer* server) { server_.store(server, std::memory_order_release); }

  // The cluster whose members may meet here.
  void invite(SharedWorkerCache workers) {
    std::lock_guard<std::mutex> lock(mutex_);
    workers_ = std::move(workers);
  }

  void GetStatusAsync(tf::CallOptions* options, const tf::GetStatusRequest* request,
                      tf::GetStatusResponse* response, bool fail_fast,
                      tf::StatusCallback done) override {
    std::string hello;
    DataServer* const server = server_.load(std::memory_order_acquire);
    if (settings().groups && server && find_field(*request, wire::Field::kGroup, &hello))
      done = [done, response](const absl::Status& status) {
        if (status.ok()) add_field(response, wire::Field::kGroup, "");
        done(status);
      };
    if (server && find_field(*request, wire::Field::kPeer, &hello)) {
      std::string welcome;
      if (const absl::Status admitted = server->admit(hello, &welcome); admitted.ok())
        done = [done, response, welcome](const absl::Status& status) {
          if (status.ok()) add_field(response, wire::Field::kPeer, welcome);
          done(status);
        };
      else
        // Whoever reaches the port can cause this line.
        LOG_EVERY_N_SEC(WARNING, 10)
            << "tensorwire: a peer was not admitted: " << absl::CEscape(admitted.message());
    }
    GrpcWorker::GetStatusAsync(options, request, response, fail_fast, std::move(done));
  }

  void GrpcRecvTensorAsync(tf::CallOptions* options, const tf::RecvTensorRequest* request,
                           ::grpc::ByteBuffer* response, tf::StatusCallback done) override {
    count(statistics().served_grpc);
    GrpcWorker::GrpcRecvTensorAsync(options, request, response, std::move(done));
  }

  void RecvBufAsync(tf::CallOptions* options, const tf::RecvBufRequest* request,
                    tf::RecvBufResponse* response, tf::StatusCallback done) override {
    SharedWorkerCache workers;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      workers = workers_;
    }
    if (!workers || !answer_meeting(&meeting_place_, workers, options, *request, response, done))
      GrpcWorker::RecvBufAsync(options, request, response, std::move(done));
  }

  const tf::WorkerEnv& environment() const override { return *env_; }
  absl::Status prepare(const std::string& key, tf::Rendezvous::ParsedKey* parsed) override {
    tf::Device* device = nullptr;
    absl::Status status = tf::Rendezvous::ParseKey(key, parsed);
    if (status.ok()) status = PrepareRecvTensor(*parsed, &device);
    if (status.ok() && device->attributes().device_type() != "CPU")
      status = absl::UnimplementedError(
          absl::StrCat("the memory of ", device->name(), " is out of tensorwire's reach"));
    return status;
  }
  void abort_step(int64_t step) override {
    LOG(WARNING) << absl::StrCat("tensorwire: a peer no longer waits for tensors of step ", step);
    AbortStep(step);
  }

 private:
  std::atomic<DataServer*> server_{nullptr};
  MeetingPlace meeting_place_;
  std::mutex mutex_;           // guards what follows
  SharedWorkerCache workers_;  // null: nobody meets here
};

// A number of IPv6 without the brackets that a cluster has around it.
std::string bare(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

class Server final : public tf::GrpcServer {
 public:
  Server(const tf::ServerDef& definition, tf::Env* environment)
      : GrpcServer(definition, environment) {}
  ~Server() override {
    if (worker_) worker_->serve(nullptr);
  }

  absl::Status open(tf::DeviceMgr* devices) {
    name_ = absl::StrCat("/job:", server_def().job_name(), "/replica:", server_def().replica(),
                         "/task:", server_def().task_index());
    // Init() says what is wrong with the definition. Devices of such a name end the process.
    std::string host;
    int port = 0;
    if (absl::Status status = GetHostAndPort(server_def(), &host, &port); !status.ok())
      return status;
    // An eager context brings its own devices; else they are the server's to make.
    if (!devices && settings().enabled && settings().arena && !arena_adopted()) {
      if (absl::Status status =
              make_arena_devices(server_def().default_session_config(), name_, &devices);
          !status.ok())
        return status;
    }
    tf::GrpcServerOptions options;
    options.local_device_mgr = devices;
    options.rendezvous_mgr_func =
        [this](const tf::WorkerEnv* environment) -> tf::RendezvousMgrInterface* {
      return new RendezvousManager(environment, planned_);
    };
    options.worker_func = [this](tf::WorkerEnv* environment, const tf::ConfigProto& config) {
      auto worker = std::make_unique<Worker>(environment, config);
      worker_ = worker.get();
      return std::unique_ptr<tf::GrpcWorker>(std::move(worker));
    };
    options.collective_mgr_func = [this](const tf::ConfigProto& config,
                                         const tf::WorkerEnv* environment,
                                         tf::WorkerCacheInterface*) {
      std::unique_ptr<tf::CollectiveExecutorMgrInterface> manager;
      if (absl::Status status = make_manager(config, environment, &manager); !status.ok())
        LOG(ERROR) << "tensorwire: no collectives: " << status.message();
      return manager.release();
    };
    if (!settings().enabled) {
      options.rendezvous_mgr_func = nullptr;
      options.collective_mgr_func = nullptr;
    }
    if (absl::Status status = Init(options); !status.ok() || !settings().enabled) return status;
    if (absl::Status status = DataServer::start(worker_, host_name(), planned_, &data_server_);
        !status.ok()) {
      LOG(WARNING) << "tensorwire: this worker's tensors go by gRPC: " << status.message();
      return absl::OkStatus();
    }
    worker_->serve(data_server_.get());
    return absl::OkStatus();
  }

  // Another strategy, another connection to the cluster, or a coordinator that has lost a worker.
  absl::Status UpdateServerDef(const tf::ServerDef& definition) override {
    std::lock_guard<std::mutex> lock(update_);
    if (absl::Status status = GrpcServer::UpdateServerDef(definition);
        !status.ok() || !settings().enabled)
      return status;
    // TensorFlow's own manager of collectives has taken the place of ours.
    std::unique_ptr<tf::CollectiveExecutorMgrInterface> manager;
    if (absl::Status status =
            make_manager(definition.default_session_config(), worker_env(), &manager);
        !status.ok())
      return status;
    master_env()->collective_executor_mgr = manager.get();
    worker_env()->collective_executor_mgr = std::move(manager);
    return absl::OkStatus();
  }

 private:
  absl::Status make_manager(const tf::ConfigProto& config, const tf::WorkerEnv* environment,
                            std::unique_ptr<tf::CollectiveExecutorMgrInterface>* out) {
    tf::WorkerCacheInterface* workers = nullptr;
    if (absl::Status status =
            WorkerCacheFactory(tf::WorkerCacheFactoryOptions(server_def()), &workers);
        !status.ok())
      return status;
    const SharedWorkerCache shared(workers);
    *out = make_collective_manager(config, environment, shared, name_, bare(host_name()));
    if (settings().groups) worker_->invite(shared);
    return absl::OkStatus();
  }

  Worker* worker_ = nullptr;  // GrpcServer's
  const std::shared_ptr<PlannedSends> planned_ =
      settings().enabled && settings().plans ? std::make_shared<PlannedSends>() : nullptr;
  std::unique_ptr<DataServer> data_server_;
  std::string name_;
  std::mutex update_;  // for one UpdateServerDef at a time
};

class Factory final : public tf::ServerFactory {
 public:
  bool AcceptsOptions(const tf::ServerDef& definition) override {
    return definition.protocol() == kProtocol;
  }
  absl::Status NewServer(const tf::ServerDef& definition, const Options& options,
                         std::unique_ptr<tf::ServerInterface>* out) override {
    auto server = std::make_unique<Server>(definition, tf::Env::Default());
    if (absl::Status status = server->open(options.local_device_mgr); !status.ok()) return status;
    *out = std::move(server);
    return absl::OkStatus();
  }
};

}  // namespace

void register_server() { tf::ServerFactory::Register("TENSORWIRE_SERVER", new Factory); }

}  // namespace tensorwire
