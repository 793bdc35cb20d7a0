#include "peers.h"

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bootstrap.h"
#include "breaker.h"
#include "completion.h"
#include "settings.h"
#include "statistics.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "thread.h"

namespace tensorwire {

namespace tf = ::tensorflow;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kGetStatusMs = 5000;
constexpr int64_t kConnectNs = 5'000'000'000;
// How long it is believed that a worker has no plugin, or that it could not be asked.
constexpr auto kBelief = std::chrono::seconds(30);
constexpr auto kRetry = std::chrono::seconds(1);

bool is(absl::string_view transport, const std::string& address) {
  return absl::StartsWith(address, absl::StrCat(transport, ":"));
}

bool permitted(const std::string& address, bool same_host, bool same_user) {
  if (is("shm", address)) return settings().shm && same_host && same_user;
  if (is("verbs", address)) return settings().verbs;
  return is("tcp", address) && settings().tcp;
}

// Links by where they lead: workers that are reached through several caches share one.
class Links {
 public:
  std::shared_ptr<PeerLink> find(const std::string& task, const std::string& where) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = links_.find(where);
    if (at == links_.end()) return nullptr;
    auto link = at->second.lock();
    if (link && link->alive()) return link;
    links_.erase(at);
    if (link && link->by() == By::kVerbs) {
      // The worker's process is the same, so it was not its end that ended the link.
      tw_status why{};
      core().link_death(link->get(), &why);
      breakers_[task].died(link->age(), why.details);
      count(statistics().verbs_failed);
    }
    return nullptr;
  }
  void unreached(const std::string& task, const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    breakers_[task].unreached(why);
    count(statistics().verbs_failed);
  }
  // Until when links by RDMA to the task are passed over for another way, and why.
  Clock::time_point passed_over(const std::string& task, std::string* why) {
    if (!settings().required.empty()) return {};
    std::lock_guard<std::mutex> lock(mutex_);
    Breaker& breaker = breakers_[task];
    if (breaker.news())
      LOG(WARNING) << "tensorwire: verbs to " << task
                   << " is passed over for a while, because its links fail: " << breaker.why();
    *why = breaker.why();
    return breaker.until();
  }
  void add(const std::string& where, const std::shared_ptr<PeerLink>& link) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto at = links_.begin(); at != links_.end();)
      at = at->second.expired() ? links_.erase(at) : std::next(at);
    links_[where] = link;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<PeerLink>> links_;
  std::map<std::string, Breaker> breakers_;  // by task
};

Links& links() {
  static Links* const links = new Links;
  return *links;
}

// Blocks for as long as connecting takes.
Way connect(const std::string& task, const Welcome& welcome) {
  Way way;
  const auto give_up = [&](absl::string_view why) {
    way.kind = settings().required.empty() ? Way::kGrpc : Way::kNone;
    way.why =
        absl::UnavailableError(absl::StrCat("no tensorwire link to ", task, " can be made: ", why));
    return way;
  };
  tw_peer_facts facts;
  tw_status status{};
  if (core().parse_hello(welcome.hello.data(), welcome.hello.size(), &facts, &status) != TW_OK)
    return give_up(status.details);
  std::vector<std::string> reasons;
  for (const std::string& address : welcome.addresses) {
    if (!permitted(address, facts.same_host, facts.same_user)) continue;
    const std::string where = absl::StrCat(welcome.instance, address);
    way.link = links().find(task, where);
    if (!way.link && is("verbs", address)) {
      std::string why = why_no_verbs();
      if (why.empty()) {
        const Clock::time_point until = links().passed_over(task, &why);
        if (until <= Clock::now())
          why.clear();
        else
          way.until = until;
      }
      if (!why.empty()) {
        reasons.push_back(absl::StrCat("verbs: ", why));
        continue;
      }
    }
    if (!way.link) {
      const auto bytes = [](const std::string& of) {
        return reinterpret_cast<const uint8_t*>(of.data());
      };
      const tw_invitation invitation{address.c_str(),
                                     bytes(welcome.session),
                                     bytes(welcome.secret),
                                     bytes(welcome.instance),
                                     welcome.hello.data(),
                                     welcome.hello.size(),
                                     kMaxMessage};
      tw_link* link = nullptr;
      if (core().connect(&invitation, kConnectNs, &link, &status) != TW_OK) {
        reasons.push_back(absl::StrCat(address, ": ", status.details));
        if (is("verbs", address) && settings().required.empty()) {
          links().unreached(task, status.details);
          std::string why;
          way.until = links().passed_over(task, &why);
        }
        continue;
      }
      way.link = std::make_shared<PeerLink>(link);
      links().add(where, way.link);
      LOG(INFO) << "tensorwire: " << task << " is reached by " << core().link_transport(link)
                << (reasons.empty() ? ""
                                    : absl::StrCat(" (not ", absl::StrJoin(reasons, "; "), ")"));
    }
    way.kind = Way::kLink;
    return way;
  }
  return give_up(reasons.empty() ? "it offers no address that is permitted here"
                                 : absl::StrJoin(reasons, "; "));
}

// One worker asks another whether it has the plugin.
struct Question {
  SharedWorkerCache workers;
  std::string task;
  tf::WorkerInterface* worker = nullptr;
  tf::CallOptions options;
  tf::GetStatusRequest request;
  tf::GetStatusResponse response;
};

struct Entry {
  Way way;
  Clock::time_point until;  // kGrpc, kNone: believed until then
  bool asking = false;
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

  Way known(const SharedWorkerCache& workers, const std::string& task) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto cache = caches_.find(workers);
    if (cache == caches_.end()) return {};
    const auto at = cache->second.find(task);
    return at == cache->second.end() ? Way{} : current(at->second);
  }

  void find(const SharedWorkerCache& workers, const std::string& task,
            std::function<void(Way)> then) {
    Way way;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Entry& entry = caches_[workers][task];
      way = current(entry);
      if (way.kind == Way::kUnknown) {
        entry.waiting.push_back(std::move(then));
        if (std::exchange(entry.asking, true)) return;
      }
    }
    if (way.kind != Way::kUnknown)
      then(std::move(way));
    else
      ask(workers, task);
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

  static Way current(const Entry& entry) {
    switch (entry.way.kind) {
      case Way::kLink:
        if (entry.way.link->alive() && Clock::now() < entry.way.until) return entry.way;
        break;
      case Way::kGrpc:
      case Way::kNone:
        if (Clock::now() < entry.until) return entry.way;
        break;
      case Way::kUnknown:
        break;
    }
    return {};
  }

  void ask(const SharedWorkerCache& workers, const std::string& task) {
    auto question = std::make_shared<Question>();
    question->workers = workers;
    question->task = task;
    Way way;
    way.kind = Way::kGrpc;
    std::string greeting;
    if (way.why = make_greeting(&greeting); !way.why.ok()) return settle(*question, way, kBelief);
    question->worker = workers->GetOrCreateWorker(task);
    if (!question->worker) {
      way.why = absl::NotFoundError(absl::StrCat("no worker is known as ", task));
      return settle(*question, way, kRetry);
    }
    add_field(&question->request, greeting);
    question->options.SetTimeout(kGetStatusMs);
    question->worker->GetStatusAsync(&question->options, &question->request, &question->response,
                                     /*fail_fast=*/true,
                                     [this, question](const absl::Status& status) {
                                       // Connecting blocks, and this thread is gRPC's.
                                       start_thread("tensorwire-ask", [this, question, status] {
                                         answered(*question, status);
                                       }).detach();
                                     });
  }

  void answered(Question& question, const absl::Status& status) {
    question.workers->ReleaseWorker(question.task, question.worker);
    Way way;
    way.kind = settings().required.empty() ? Way::kGrpc : Way::kNone;
    std::string field;
    if (!status.ok()) {
      way.kind = Way::kGrpc;  // it will find out what is wrong, and say so
      way.why = status;
      return settle(question, way, kRetry);
    }
    if (!find_field(question.response, &field)) {
      way.why = absl::UnavailableError(
          absl::StrCat(question.task,
                       " runs without tensorwire: start it by `tensorwire run`, or "
                       "call tensorwire.tensorflow.enable() in it"));
      LOG(INFO) << "tensorwire: " << question.task
                << " has no tensorwire, its tensors come by gRPC";
      return settle(question, way, kBelief);
    }
    Welcome welcome;
    way.why = decode_welcome(field, &welcome);
    if (way.why.ok()) way = connect(question.task, welcome);
    if (way.kind != Way::kLink) LOG(WARNING) << "tensorwire: " << way.why.message();
    settle(question, way, kBelief);
  }

  void settle(const Question& question, const Way& way, Clock::duration belief) {
    std::vector<std::function<void(Way)>> waiting;
    std::vector<Entries> ended;  // let go of without the lock
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended = take_ended();
      Entry& entry = caches_[question.workers][question.task];
      entry.way = way;
      entry.until = Clock::now() + belief;
      entry.asking = false;
      waiting.swap(entry.waiting);
    }
    for (const auto& then : waiting) then(way);
  }

  std::mutex mutex_;
  std::map<std::weak_ptr<tf::WorkerCacheInterface>, Entries, std::owner_less<>> caches_;
};

}  // namespace

PeerLink::PeerLink(tw_link* link)
    : link_(link),
      by_(std::strcmp(core().link_transport(link), "shm") == 0     ? By::kShm
          : std::strcmp(core().link_transport(link), "verbs") == 0 ? By::kVerbs
                                                                   : By::kTcp) {
  count(statistics().links);
}

PeerLink::~PeerLink() {
  if (!alive()) count(statistics().links_lost);
  core().link_release(link_);
}

Way known_way(const SharedWorkerCache& workers, const std::string& task) {
  return Peers::get().known(workers, task);
}

void find_way(const SharedWorkerCache& workers, const std::string& task,
              std::function<void(Way)> then) {
  Peers::get().find(workers, task, std::move(then));
}

size_t peers_known() { return Peers::get().size(); }

}  // namespace tensorwire
