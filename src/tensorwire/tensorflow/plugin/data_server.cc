// SPDX-License-Identifier: Apache-2.0
#include "data_server.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "request.h"
#include "served.h"
#include "settings.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/logging.h"
#include "thread.h"
#include "transports.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

constexpr int64_t kInvitationNs = 30'000'000'000;
constexpr size_t kCallsAtOnce = 64;
// What is copied for an answer takes the dispatcher's time up to here, then that of TensorFlow's
// threads.
constexpr size_t kCopyHere = 256 << 10;

thread_local bool t_dispatching = false;

int listen_as(tw_server* server, const std::string& host, int* port, tw_status* status) {
  const auto at = [&](const char* address) {
    return core().server_listen_tcp(server, address, 0, port, status);
  };
  // A worker that its cluster knows by a name of this host alone is reached from nowhere else.
  if (host == "localhost") return at("127.0.0.1");
  if (host == "[::1]") return at("::1");
  if (absl::StartsWith(host, "127.")) return at(host.c_str());
  const int both = at("::");
  return both == TW_OK ? both : at("0.0.0.0");  // a kernel without IPv6
}

// What a call asks for. INVALID_ARGUMENT.
absl::Status take_request(tw_server_call* call, wire::Request* out) {
  std::string bytes;
  tw_message* message = nullptr;
  if (core().call_take(call, &message)) {
    if (core().message_count(message) == 1) {
      const tw_segment segment = core().message_segment(message, 0);
      // One byte more shows that it is too long.
      bytes.assign(static_cast<const char*>(segment.data),
                   std::min(segment.size, wire::kMaxRequest + 1));
    }
    core().message_release(message);
  }
  const std::string wrong = wire::decode_request(bytes, out);
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(wrong);
}

}  // namespace

absl::Status DataServer::start(WorkerService* worker, const std::string& host,
                               std::shared_ptr<PlannedSends> planned,
                               std::unique_ptr<DataServer>* out) {
  std::unique_ptr<DataServer> made(new DataServer(worker, std::move(planned)));
  tw_status status{};
  if (core().server_create(kMaxMessage, &made->server_, &status) != TW_OK) return status_of(status);
  // A step's tensors are all asked for at once, and TensorFlow holds what it has made of them: to
  // refuse one would end the step.
  core().server_limit_unread(made->server_, -1);
  // Those of one host meet at a socket file, the others at one TCP port.
  for (const bool local : {true, false}) {
    std::vector<absl::string_view> names;
    for (const Transport& each : transports()) {
      if (each.local != local || !each.permitted) continue;
      tw_status why{};
      if (core().transport_why_not(each.name.c_str(), &why) == TW_OK)
        names.push_back(each.name);
      else
        status = why;
    }
    if (names.empty()) continue;
    char path[256];
    int port = 0;
    const int result = local ? core().server_listen_local(made->server_, path, sizeof path, &status)
                             : listen_as(made->server_, host, &port, &status);
    if (result != TW_OK) {
      LOG(WARNING) << "tensorwire: no " << absl::StrJoin(names, ", no ")
                   << " for this worker: " << status.details;
      continue;
    }
    const std::string where = local ? path : absl::StrCat(host, ":", port);
    for (const absl::string_view name : names)
      made->addresses_.push_back(absl::StrCat(name, ":", where));
  }
  if (made->addresses_.empty()) return status_of(status);
  made->cut_ = core().events_create();
  if (!made->cut_) return absl::ResourceExhaustedError("no memory for a queue of ended calls");
  made->dispatcher_ =
      start_thread("tensorwire-serve", [server = made.get()] { server->dispatch(); });
  made->watcher_ = start_thread("tensorwire-cut", [server = made.get()] { server->watch(); });
  if (!made->dispatcher_.joinable() || !made->watcher_.joinable())
    return absl::ResourceExhaustedError("no threads to serve peers");
  *out = std::move(made);
  return absl::OkStatus();
}

DataServer::~DataServer() {
  if (server_) core().server_close(server_);
  if (dispatcher_.joinable()) dispatcher_.join();
  if (cut_) core().events_close(cut_);
  if (watcher_.joinable()) watcher_.join();
  if (cut_) core().events_release(cut_);
  if (server_) core().server_release(server_);
}

absl::Status DataServer::admit(const std::string& hello, std::string* out) {
  tw_welcome welcome{};
  tw_status status{};
  // TensorFlow does not tell who asks: all are one source, of which the oldest invitation gives
  // way.
  if (core().server_admit(server_, hello.data(), hello.size(), "", 1, kInvitationNs,
                          welcome.session, welcome.secret, &status) != TW_OK ||
      core().hello(welcome.hello, &status) != TW_OK)
    return status_of(status);
  core().server_instance(server_, welcome.instance);
  std::vector<const char*> addresses;
  for (const std::string& address : addresses_) addresses.push_back(address.c_str());
  out->resize(TW_WELCOME_ROOM);
  size_t size = 0;
  if (core().encode_welcome(&welcome, addresses.data(), addresses.size(), &(*out)[0], &size,
                            &status) != TW_OK)
    return status_of(status);
  out->resize(size);
  return absl::OkStatus();
}

void DataServer::dispatch() {
  t_dispatching = true;
  tw_server_call* calls[kCallsAtOnce];
  size_t number = 0;
  while (core().server_next(server_, nullptr, calls, kCallsAtOnce, &number, nullptr) == TW_OK)
    for (size_t i = 0; i < number; ++i) take(calls[i]);
}

void DataServer::take(tw_server_call* call) {
  const char* name;
  size_t size;
  core().call_method(call, &name, &size);
  const absl::string_view method(name, size);
  if (method == kPlan && planned_) return planned_->open(call, worker_);
  wire::Request request;
  const absl::Status decoded = take_request(call, &request);
  auto served = std::make_shared<Served>(this, call, request.step);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    served->id_ = next_id_++;
    served_.emplace(served->id(), served);
  }
  if (!decoded.ok()) return served->answer(decoded);
  if (method == kRecvTensor)
    recv_tensor(served, request);
  else if (method == kRecvBuf)
    recv_buf(served, request);
  else
    served->answer(absl::UnimplementedError(absl::StrCat("unknown method ", method)));
  // What has to be waited for may be waited for in vain.
  if (!served->answered() && !core().call_notify(call, TW_ON_CUT, cut_, served->id()))
    served->answer(absl::ResourceExhaustedError("the worker has no memory left for it"));
}

void DataServer::recv_tensor(const std::shared_ptr<Served>& served, const wire::Request& request) {
  tf::Rendezvous::ParsedKey key;
  if (const absl::Status status = worker_->prepare(request.key, &key); !status.ok())
    return served->answer(status);
  const tf::WorkerEnv& environment = worker_->environment();
  if (planned_) {
    // From here on the step is one that was there before anything that is agreed on later.
    const auto rendezvous = environment.rendezvous_mgr->Find(request.step);
    switch (planned_->asked(served->call(), request.step, request.key)) {
      case PlannedSends::Answer::kTensor:
        break;
      case PlannedSends::Answer::kPushed:
        return served->answer_pushed();
      case PlannedSends::Answer::kLost:
        return served->answer(
            absl::UnavailableError("the tensor was sent ahead on another connection"));
    }
    return recv_local(served, key);
  }
  recv_local(served, key);
}

void DataServer::recv_local(const std::shared_ptr<Served>& served,
                            const tf::Rendezvous::ParsedKey& key) {
  const tf::WorkerEnv& environment = worker_->environment();
  environment.rendezvous_mgr->RecvLocalAsync(
      served->step(), key,
      [served, &environment](const absl::Status& status, const tf::Rendezvous::Args&,
                             const tf::Rendezvous::Args&, const tf::Tensor& tensor, bool dead) {
        if (!status.ok()) return served->answer(status);
        if (t_dispatching && tensor.TotalBytes() > kCopyHere && served->copies(tensor)) {
          environment.compute_pool->Schedule(
              [served, tensor, dead] { served->answer(tensor, dead); });
        } else {
          served->answer(tensor, dead);
        }
      });
}

void DataServer::recv_buf(const std::shared_ptr<Served>& served, const wire::Request& request) {
  const tf::WorkerEnv& environment = worker_->environment();
  tf::Device* device = nullptr;
  if (absl::Status status = environment.device_mgr->LookupDevice(request.device, &device);
      !status.ok())
    return served->answer(status);
  if (device->attributes().device_type() != "CPU")
    return served->answer(absl::UnimplementedError(
        absl::StrCat("the memory of ", device->name(), " is out of tensorwire's reach")));
  tf::CollectiveExecutor::Handle executor(
      environment.collective_executor_mgr->FindOrCreate(request.step), true);
  executor.get()->remote_access()->buf_rendezvous()->ConsumeBuf(
      request.key, request.device, request.incarnation,
      [served, &environment](const absl::Status& status, tf::BufRendezvous::Hook* hook) {
        if (!status.ok()) {
          if (hook) tf::BufRendezvous::DoneWithHook(hook);
          return served->answer(status);
        }
        if (t_dispatching && hook->prod_value->TotalBytes() > kCopyHere &&
            served->copies(*hook->prod_value)) {
          environment.compute_pool->Schedule([served, hook] { served->answer(hook); });
        } else {
          served->answer(hook);
        }
      },
      nullptr);
}

// A peer that has cancelled its receive, or died, will not finish its step: as TensorFlow's own
// RecvTensor does, the step is aborted here too.
void DataServer::watch() {
  for (;;) {
    uint64_t id = 0;
    int closed = 0;
    if (core().events_wait(cut_, nullptr, &id, 1, &closed) == 0) {
      if (closed) return;
      continue;
    }
    std::shared_ptr<Served> served;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto at = served_.find(id);
      if (at != served_.end()) served = at->second;
    }
    if (!served || served->answered()) continue;
    served->settle();
    worker_->abort_step(served->step());
  }
}

void DataServer::forget(uint64_t id) {
  std::shared_ptr<Served> last;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = served_.find(id);
  if (at == served_.end()) return;
  last = std::move(at->second);
  served_.erase(at);
}

}  // namespace tensorwire
