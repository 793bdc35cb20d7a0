// SPDX-License-Identifier: Apache-2.0
#include "peers.h"

#include <chrono>
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
#include "belief.h"
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
                   << " is passed over for a while, because its links fail: "
                   << absl::CEscape(breaker.why());
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

Way without_link(Way::Reason reason, absl::Status why) {
  Way way;
  way.kind = settings().required.empty() ? Way::kGrpc : Way::kNone;
  way.reason = reason;
  way.why = std::move(why);
  return way;
}

// Blocks for as long as connecting takes.
Way connect(const std::string& task, const std::string& field) {
  Way way;
  const auto give_up = [&](absl::string_view why) {
    return without_link(Way::kNoLink, absl::UnavailableError(absl::StrCat(
                                          "no tensorwire link to ", task, " can be made: ", why)));
  };
  tw_welcome welcome;
  std::vector<std::string> addresses;
  const auto take = [](void* to, const char* address) {
    static_cast<std::vector<std::string>*>(to)->push_back(address);
  };
  tw_peer_facts facts;
  tw_status status{};
  if (core().decode_welcome(field.data(), field.size(), &welcome, take, &addresses, &status) !=
          TW_OK ||
      core().parse_hello(welcome.hello, sizeof welcome.hello, &facts, &status) != TW_OK)
    return give_up(status.details);
  const absl::string_view instance(reinterpret_cast<const char*>(welcome.instance),
                                   sizeof welcome.instance);
  std::vector<std::string> reasons;
  for (const std::string& address : addresses) {
    if (!permitted(address, facts.same_host, facts.same_user)) continue;
    const std::string where = absl::StrCat(instance, address);
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
      const tw_invitation invitation{address.c_str(),  welcome.session, welcome.secret,
                                     welcome.instance, welcome.hello,   sizeof welcome.hello,
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
                << (reasons.empty()
                        ? ""
                        : absl::StrCat(" (not ", absl::CEscape(absl::StrJoin(reasons, "; ")), ")"));
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
  std::optional<Way> way;
  Belief belief;
  std::vector<std::function<void(Way)>> waiting;

  Belief::Known known() const {
    if (!way || (way->kind == Way::kLink && !way->link->alive())) return Belief::Known::kNothing;
    return way->kind == Way::kNone ? Belief::Known::kRefusal : Belief::Known::kWay;
  }
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
    std::optional<Way> way;
    Belief::Advice advice;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Entry& entry = caches_[workers][task];
      advice = entry.belief.consult(entry.known(), Clock::now());
      if (advice.use)
        way = entry.way;
      else if (then)
        entry.waiting.push_back(std::move(then));
    }
    if (advice.ask) ask(workers, task);
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

  void ask(const SharedWorkerCache& workers, const std::string& task) {
    auto question = std::make_shared<Question>();
    question->workers = workers;
    question->task = task;
    std::string hello(TW_HELLO_SIZE, '\0');
    tw_status failure{};
    if (core().hello(reinterpret_cast<uint8_t*>(&hello[0]), &failure) != TW_OK)
      return settle(*question, without_link(Way::kNoLink, status_of(failure)));
    question->worker = workers->GetOrCreateWorker(task);
    if (!question->worker)
      return unanswered(*question,
                        absl::NotFoundError(absl::StrCat("no worker is known as ", task)));
    add_field(&question->request, hello);
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
    if (!status.ok()) return unanswered(question, status);
    std::string field;
    if (!find_field(question.response, &field)) {
      LOG(INFO) << "tensorwire: " << question.task
                << " has no tensorwire, its tensors come by gRPC";
      return settle(
          question,
          without_link(Way::kNoPlugin, absl::UnavailableError(absl::StrCat(
                                           question.task,
                                           " runs without tensorwire: start it by `tensorwire "
                                           "run`, or call tensorwire.tensorflow.enable() in it"))));
    }
    const Way way = connect(question.task, field);
    if (way.kind != Way::kLink) LOG(WARNING) << "tensorwire: " << absl::CEscape(way.why.message());
    settle(question, way);
  }

  // gRPC, where it may be used, will find out what is wrong, and say so.
  void unanswered(const Question& question, const absl::Status& why) {
    Way way = without_link(Way::kNoLink, why);
    if (way.kind == Way::kNone)
      way.why = absl::UnavailableError(
          from_remote(why.message(), question.task,
                      absl::StrCat("tensorwire could not ask for a link, and TENSORWIRE_TRANSPORT=",
                                   settings().required, " leaves no other way")));
    settle(question, way, /*answered=*/false);
  }

  void settle(const Question& question, Way way, bool answered = true) {
    std::vector<std::function<void(Way)>> waiting;
    std::vector<Entries> ended;  // let go of without the lock
    std::optional<Way> before;   // the same
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended = take_ended();
      Entry& entry = caches_[question.workers][question.task];
      const Clock::time_point now = Clock::now();
      if (!answered) {
        entry.belief.unanswered(now);
        // A link that lives is worth more than a question that came to nothing.
        if (entry.way && entry.way->kind == Way::kLink && entry.way->link->alive())
          way = *entry.way;
      } else if (way.kind == Way::kLink) {
        entry.belief.linked(way.until);
      } else if (way.kind == Way::kGrpc && way.reason == Way::kNoLink) {
        entry.belief.unreached(now);
      } else {
        entry.belief.declined(now);
      }
      before = std::exchange(entry.way, way);
      waiting.swap(entry.waiting);
    }
    for (const auto& then : waiting) then(way);
  }

  std::mutex mutex_;
  std::map<std::weak_ptr<tf::WorkerCacheInterface>, Entries, std::owner_less<>> caches_;
};

}  // namespace

PeerLink::PeerLink(tw_link* link) : link_(link), by_(tensorwire::by(core().link_transport(link))) {
  count(statistics().links);
}

PeerLink::~PeerLink() {
  if (!alive()) count(statistics().links_lost);
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
