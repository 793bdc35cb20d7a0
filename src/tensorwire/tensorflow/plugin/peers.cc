// SPDX-License-Identifier: Apache-2.0
#include "peers.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bootstrap.h"
#include "completion.h"
#include "settings.h"
#include "statistics.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "thread.h"
#include "transports.h"

namespace tensorwire {

namespace tf = ::tensorflow;

namespace {

constexpr int64_t kConnectNs = 5'000'000'000;

// Links by where they lead: workers that are reached through several caches share one.
class Links {
 public:
  // Makes the link that leads there, unless there is one. Whoever wants it while it is being made
  // waits, and gets what comes of it.
  template <class Make>
  std::shared_ptr<PeerLink> find_or(const std::string& where, tw_status* why, const Make& make) {
    std::shared_ptr<Making> making;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (std::shared_ptr<PeerLink> link = find(where)) return link;
      if (const auto at = making_.find(where); at != making_.end()) {
        making = at->second;
        made_.wait(lock, [&] { return making->over; });
        *why = making->why;
        return making->link;
      }
      making = making_.emplace(where, std::make_shared<Making>()).first->second;
    }
    std::shared_ptr<PeerLink> link = make(why);
    std::lock_guard<std::mutex> lock(mutex_);
    making->over = true;
    making->link = link;
    making->why = *why;
    making_.erase(where);
    if (link) links_[where] = link;
    made_.notify_all();
    return link;
  }

 private:
  struct Making {
    bool over = false;
    std::shared_ptr<PeerLink> link;  // null: see `why`
    tw_status why{};
  };

  std::shared_ptr<PeerLink> find(const std::string& where) {
    for (auto at = links_.begin(); at != links_.end();)
      at = at->second.expired() ? links_.erase(at) : std::next(at);
    const auto at = links_.find(where);
    std::shared_ptr<PeerLink> link = at == links_.end() ? nullptr : at->second.lock();
    return link && link->alive() ? link : nullptr;
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable made_;
  std::map<std::string, std::weak_ptr<PeerLink>> links_;
  std::map<std::string, std::shared_ptr<Making>> making_;
};

Links& links() {
  static Links* const links = new Links;
  return *links;
}

Way without_link(Way::Reason reason, absl::Status why) {
  Way way;
  way.kind = settings().required.empty() ? Way::kGrpc : Way::kNone;
  way.reason = reason;
  way.why = std::move(why);
  return way;
}

// When the way to one worker is to be found out, and by which transports.
class Route {
 public:
  Route() {
    std::vector<const char*> forbidden;
    for (const Transport& each : transports())
      if (!each.permitted) forbidden.push_back(each.name.c_str());
    const std::string origin = absl::StrCat("TENSORWIRE_TRANSPORT=", settings().required);
    const tw_policy policy{settings().required.empty() ? nullptr : settings().required.c_str(),
                           forbidden.data(), forbidden.size(), origin.c_str()};
    tw_status status{};
    tw_route* route = nullptr;
    if (core().route_create(&policy, /*pauses=*/nullptr, &route, &status) != TW_OK)
      why_not_ = status_of(status);
    route_.reset(route);
  }
  // Null: see why_not().
  tw_route* get() const { return route_.get(); }
  const absl::Status& why_not() const { return why_not_; }

 private:
  struct Release {
    void operator()(tw_route* route) const { core().route_release(route); }
  };
  std::unique_ptr<tw_route, Release> route_;
  absl::Status why_not_;
};

// One attempt to connect to a worker that has told what it offers.
class Attempt {
 public:
  explicit Attempt(const std::string& task) : task_(task) {}

  // Blocks for as long as connecting takes. What came of it is the failure, unless there is a link.
  Way run(tw_route* route, const std::string& welcome, int* failure) {
    std::vector<std::string> addresses;
    const auto take = [](void* to, const char* address) {
      static_cast<std::vector<std::string>*>(to)->push_back(address);
    };
    tw_peer_facts facts;
    tw_status status{};
    if (core().decode_welcome(welcome.data(), welcome.size(), &welcome_, take, &addresses,
                              &status) != TW_OK ||
        core().parse_hello(welcome_.hello, sizeof welcome_.hello, &facts, &status) != TW_OK) {
      *failure = TW_ATTEMPT_DECLINED;
      return none(status.details);
    }
    std::vector<const char*> texts;
    for (const std::string& address : addresses) texts.push_back(address.c_str());
    const tw_offer offer{facts.same_host, facts.same_user, texts.data(), texts.size()};
    const int result = core().route_attempt(
        route, &offer, /*lacks=*/nullptr,
        [](void* of, const char*, const char* address, tw_status* why) {
          return static_cast<Attempt*>(of)->connect(address, why);
        },
        [](void* of, const char* transport, const char* why, int32_t tried) {
          static_cast<Attempt*>(of)->missed(transport, why, tried);
        },
        this, &status);
    const std::string reasons = absl::StrJoin(reasons_, "; ");
    if (result != TW_OK) {
      *failure = result == TW_CODE_FAILED_PRECONDITION ? TW_ATTEMPT_DECLINED : TW_ATTEMPT_UNREACHED;
      return none(reasons.empty() ? status.details : reasons);
    }
    LOG(INFO) << "tensorwire: " << task_ << " is reached by " << link_->by().name
              << (reasons.empty() ? "" : absl::StrCat(" (not ", absl::CEscape(reasons), ")"));
    Way way;
    way.kind = Way::kLink;
    way.link = std::move(link_);
    return way;
  }

 private:
  Way none(absl::string_view why) const {
    return without_link(Way::kNoLink, absl::UnavailableError(absl::StrCat(
                                          "no tensorwire link to ", task_, " can be made: ", why)));
  }

  int connect(const char* address, tw_status* why) {
    const absl::string_view instance(reinterpret_cast<const char*>(welcome_.instance),
                                     sizeof welcome_.instance);
    *why = {};
    link_ = links().find_or(absl::StrCat(instance, address), why,
                            [&](tw_status* failure) { return make_link(address, failure); });
    return link_ ? TW_OK : why->code;
  }

  // Null: it cannot be made.
  std::shared_ptr<PeerLink> make_link(const char* address, tw_status* why) const {
    const tw_invitation invitation{address,           welcome_.session, welcome_.secret,
                                   welcome_.instance, welcome_.hello,   sizeof welcome_.hello,
                                   kMaxMessage,       {-1, -1, -1}};
    tw_link* link = nullptr;
    if (const int result = core().connect(&invitation, nullptr, kConnectNs, &link, why);
        result != TW_OK) {
      why->code = result;
      return nullptr;
    }
    if (Transport* const by = find_transport(core().peer_transport(link)))
      return std::make_shared<PeerLink>(link, *by);
    core().link_release(link);
    why->code = TW_CODE_INTERNAL;
    return nullptr;
  }

  void missed(const char* transport, const char* why, bool tried) {
    reasons_.push_back(absl::StrCat(transport, ": ", why));
    if (Transport* const by = find_transport(transport); by && tried) count(by->failed);
  }

  const std::string& task_;
  tw_welcome welcome_;
  std::shared_ptr<PeerLink> link_;
  std::vector<std::string> reasons_;
};

// One worker asks another whether it has the plugin.
struct Question {
  SharedWorkerCache workers;
  std::string task;
  std::shared_ptr<Route> route;
  tf::WorkerInterface* worker = nullptr;
  tf::CallOptions options;
  tf::GetStatusRequest request;
  tf::GetStatusResponse response;
};

struct Entry {
  explicit Entry(std::string task) : task(std::move(task)) {}

  // The way; nothing: it is worth waiting for an answer of the worker's. A way that is known is
  // used while the worker is asked anew, because that may take long. *ask: somebody has to.
  std::optional<Way> consult(bool* ask, std::optional<Way>* lost) {
    if (!route->get()) return without_link(Way::kNoLink, route->why_not());
    look(lost);
    const tw_advice advice = core().route_consult(route->get());
    *ask = advice.begin;
    if (advice.use == TW_USE_ATTEMPT) return std::nullopt;
    return way;
  }

  // Whether the link is still alive. *lost: it is not, and whoever has the lock lets go of it
  // without, because that may end the link.
  void look(std::optional<Way>* lost) {
    if (!way || way->kind != Way::kLink || way->link->alive()) return;
    tw_status why{};
    core().peer_death(way->link->get(), &why);
    count(way->link->by().failed);
    core().route_lost(route->get(), why.details);
    warn();
    *lost = std::exchange(way, without_link(Way::kNoLink, status_of(why)));
  }

  // Of a transport that is passed over from now on.
  void warn() {
    tw_passed_over news;
    if (core().route_news(route->get(), &news))
      LOG(WARNING) << "tensorwire: " << news.transport << " to " << task
                   << " is passed over for a while, because its links fail: "
                   << absl::CEscape(news.why);
  }

  const std::string task;
  std::optional<Way> way;  // always there once the first attempt has ended
  std::shared_ptr<Route> route = std::make_shared<Route>();
  std::vector<std::function<void(Way)>> waiting;
};

// Caches belong to sessions, and end with them. What was known through one that has ended goes when
// the next worker has been asked, so that entries are bounded by the caches alive at one time.
class Peers {
 public:
  static Peers& get() {
    static Peers* const peers = new Peers;
    return *peers;
  }

  // The way; nothing: `then`, if there is one, will be called with it.
  std::optional<Way> find(const SharedWorkerCache& workers, const std::string& task,
                          std::function<void(Way)> then) {
    std::optional<Way> way, lost;
    std::shared_ptr<Route> route;
    bool begin = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Entry& entry = caches_[workers].try_emplace(task, task).first->second;
      route = entry.route;
      way = entry.consult(&begin, &lost);
      if (!way && then) entry.waiting.push_back(std::move(then));
    }
    if (begin) ask(workers, task, std::move(route));
    return way;
  }

  size_t size() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t size = 0;
    for (const auto& cache : caches_) size += cache.second.size();
    return size;
  }

 private:
  using Entries = std::unordered_map<std::string, Entry>;  // by task

  std::vector<Entries> take_ended() {
    std::vector<Entries> ended;
    for (auto at = caches_.begin(); at != caches_.end();) {
      if (at->first.expired()) {
        ended.push_back(std::move(at->second));
        at = caches_.erase(at);
      } else {
        ++at;
      }
    }
    return ended;
  }

  void ask(const SharedWorkerCache& workers, const std::string& task,
           std::shared_ptr<Route> route) {
    auto question = std::make_shared<Question>();
    question->workers = workers;
    question->task = task;
    question->route = std::move(route);
    std::string hello(TW_HELLO_SIZE, '\0');
    tw_status failure{};
    if (core().hello(reinterpret_cast<uint8_t*>(&hello[0]), &failure) != TW_OK)
      return settle(*question, without_link(Way::kNoLink, status_of(failure)),
                    TW_ATTEMPT_UNREACHED);
    question->worker = workers->GetOrCreateWorker(task);
    if (!question->worker)
      return unanswered(*question,
                        absl::NotFoundError(absl::StrCat("no worker is known as ", task)));
    add_field(&question->request, wire::Field::kPeer, hello);
    question->options.SetTimeout(kGetStatusMs);
    question->worker->GetStatusAsync(
        &question->options, &question->request, &question->response,
        /*fail_fast=*/true, [this, question](const absl::Status& status) {
          // Connecting blocks, and this thread is gRPC's.
          if (!start_detached("tensorwire-ask",
                              [this, question, status] { answered(*question, status); }))
            answered(*question, absl::ResourceExhaustedError("no thread to make a link"));
        });
  }

  void answered(Question& question, const absl::Status& status) {
    question.workers->ReleaseWorker(question.task, question.worker);
    if (!status.ok()) return unanswered(question, status);
    std::string field;
    if (!find_field(question.response, wire::Field::kPeer, &field)) {
      LOG(INFO) << "tensorwire: " << question.task
                << " has no tensorwire, its tensors come by gRPC";
      return settle(
          question,
          without_link(Way::kNoPlugin, absl::UnavailableError(absl::StrCat(
                                           question.task,
                                           " runs without tensorwire: start it by `tensorwire "
                                           "run`, or call tensorwire.tensorflow.enable() in it"))),
          TW_ATTEMPT_DECLINED);
    }
    int failure = TW_ATTEMPT_UNREACHED;
    const Way way = Attempt(question.task).run(question.route->get(), field, &failure);
    if (way.kind != Way::kLink) LOG(WARNING) << "tensorwire: " << absl::CEscape(way.why.message());
    settle(question, way, failure);
  }

  // gRPC, where it may be used, will find out what is wrong, and say so.
  void unanswered(const Question& question, const absl::Status& why) {
    Way way = without_link(Way::kNoLink, why);
    if (way.kind == Way::kNone)
      way.why = absl::UnavailableError(
          from_remote(why.message(), question.task,
                      absl::StrCat("tensorwire could not ask for a link, and TENSORWIRE_TRANSPORT=",
                                   settings().required, " leaves no other way")));
    settle(question, way, TW_ATTEMPT_UNANSWERED);
  }

  // failure: what came of asking, where that is not a link.
  void settle(const Question& question, Way way, int failure) {
    std::vector<std::function<void(Way)>> waiting;
    std::vector<Entries> ended;       // let go of without the lock
    std::optional<Way> before, lost;  // the same
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended = take_ended();
      Entry& entry =
          caches_[question.workers].try_emplace(question.task, question.task).first->second;
      entry.look(&lost);
      if (way.kind == Way::kLink) {
        core().route_linked(question.route->get(), way.link->by().name.c_str());
      } else {
        core().route_failed(question.route->get(), failure);
        // A link that lives is worth more than a question that came to nothing.
        if (entry.way && entry.way->kind == Way::kLink) way = *entry.way;
      }
      entry.warn();
      before = std::exchange(entry.way, way);
      waiting.swap(entry.waiting);
    }
    for (const auto& then : waiting) then(way);
  }

  std::mutex mutex_;  // guards what follows
  std::map<std::weak_ptr<tf::WorkerCacheInterface>, Entries, std::owner_less<>> caches_;
};

}  // namespace

PeerLink::PeerLink(tw_link* link, Transport& by)
    : link_(link), by_(by), planned_(settings().plans ? PlannedReceives::make(link, by) : nullptr) {
  count(statistics().links);
}

PeerLink::~PeerLink() {
  if (!alive()) count(statistics().links_lost);
  if (planned_) planned_->close();
  core().link_release(link_);
}

std::optional<Way> known_way(const SharedWorkerCache& workers, const std::string& task) {
  return Peers::get().find(workers, task, nullptr);
}

void find_way(const SharedWorkerCache& workers, const std::string& task,
              std::function<void(Way)> then) {
  if (std::optional<Way> way = Peers::get().find(workers, task, then)) then(*std::move(way));
}

size_t peers_known() { return Peers::get().size(); }

std::string from_remote(absl::string_view details, const std::string& task,
                        absl::string_view what) {
  return absl::StrCat(details, "\nAdditional GRPC error information from remote target ", task,
                      ":\n:", what);
}

}  // namespace tensorwire
