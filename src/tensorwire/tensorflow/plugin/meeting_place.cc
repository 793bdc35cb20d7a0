// SPDX-License-Identifier: Apache-2.0
#include "meeting_place.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "tensorwire.h"
#include "thread.h"

namespace tensorwire {
namespace {

using Clock = std::chrono::steady_clock;

// Between looks whether those that have not entered are still there.
constexpr std::chrono::milliseconds kLook{500};
// For members that have all entered to join: more than each of them takes before it gives up.
constexpr std::chrono::seconds kJoin{20};
// Each session has a thread, which may outlast it while it asks somebody, and whoever reaches the
// worker's port begins some.
constexpr size_t kMostThreads = 256;
// Sessions are remembered for members that come late.
constexpr size_t kMostRemembered = 4096;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool all_differ(std::vector<std::string> tasks) {
  std::sort(tasks.begin(), tasks.end());
  return std::adjacent_find(tasks.begin(), tasks.end()) == tasks.end();
}

struct Waiting {
  wire::Meeting kind;
  uint32_t rank;
  std::string key;  // kGet
  MeetingPlace::Answer answer;
};

struct Session {
  enum Stage {
    kAsking,     // whether all members join groups
    kGathering,  // until all have entered
    kJoining,    // until all have joined
    kOver,
  };
  uint64_t id = 0;
  std::vector<std::string> tasks;  // by rank
  MeetingPlace::Ask ask;
  Stage stage = kAsking;
  bool together = false;  // kOver
  int code = 0;           // kOver, where it has failed
  std::string why;        // the same
  std::vector<bool> entered, joined;
  std::map<std::string, std::string> values;
  std::map<uint64_t, Waiting> waiting;

  bool all(const std::vector<bool>& of) const {
    return std::all_of(of.begin(), of.end(), [](bool each) { return each; });
  }
};

// Answers that are given once no lock is held.
using Replies = std::vector<std::function<void()>>;

void reply(Replies* replies, MeetingPlace::Answer answer, int code, std::string text) {
  replies->push_back(
      [answer = std::move(answer), code, text = std::move(text)] { answer(code, text); });
}

void send(const Replies& replies) {
  for (const auto& each : replies) each();
}

}  // namespace

struct MeetingPlace::State {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  uint64_t next_id = 1;  // of requests
  uint64_t next_session = std::random_device()() | uint64_t{1} << 32;
  std::map<std::string, std::shared_ptr<Session>> current;  // by the group's identity
  std::map<uint64_t, std::weak_ptr<Session>> sessions;
  size_t threads = 0;  // that look after sessions
  bool closed = false;

  // ---- all of these with the lock ----

  std::string outcome(const Session& session) const {
    return wire::encode_session(session.together ? session.id : 0);
  }

  // Answers all that wait for a step of this kind.
  void answer_all(Session& session, wire::Meeting kind, const std::string& text, Replies* replies) {
    for (auto at = session.waiting.begin(); at != session.waiting.end();) {
      if (at->second.kind != kind) {
        ++at;
        continue;
      }
      reply(replies, std::move(at->second.answer), 0, text);
      at = session.waiting.erase(at);
    }
  }

  void decide(Session& session, bool together, Replies* replies) {
    session.stage = Session::kOver;
    session.together = together;
    session.values.clear();
    answer_all(session, wire::Meeting::kEnter, outcome(session), replies);
    answer_all(session, wire::Meeting::kJoined, outcome(session), replies);
    end(session, TW_CODE_ABORTED, "the members do not join a group", replies);
    changed.notify_all();
  }

  // What waits still gets this error.
  void end(Session& session, int code, const std::string& why, Replies* replies) {
    for (auto& [id, waiting] : session.waiting)
      reply(replies, std::move(waiting.answer), code, why);
    session.waiting.clear();
    changed.notify_all();
  }

  void fail(Session& session, int code, const std::string& why, Replies* replies) {
    if (session.stage == Session::kOver) return;
    session.stage = Session::kOver;
    session.code = code;
    session.why = why;
    end(session, code, why, replies);
  }

  void gather(Session& session, Replies* replies) {
    if (session.stage != Session::kGathering || !session.all(session.entered)) return;
    session.stage = Session::kJoining;
    answer_all(session, wire::Meeting::kEnter, wire::encode_session(session.id), replies);
    changed.notify_all();
  }

  // Null: there is no room for another one.
  std::shared_ptr<Session> begin() {
    if (threads >= kMostThreads) return nullptr;
    if (current.size() >= kMostRemembered)
      for (auto at = current.begin(); at != current.end();)
        at = at->second->stage == Session::kOver ? current.erase(at) : std::next(at);
    return std::make_shared<Session>();
  }

  std::shared_ptr<Session> enter(const wire::MeetingRequest& request, Ask ask, Replies* replies,
                                 bool* begun, bool* full) {
    const auto found = current.find(request.key);
    std::shared_ptr<Session> session = found == current.end() ? nullptr : found->second;
    if (session && session->tasks.size() != request.size) return nullptr;
    if (session && session->entered[request.rank]) {
      fail(*session, TW_CODE_ABORTED,
           session->tasks[request.rank] + " has begun to meet the others anew", replies);
      session = nullptr;
    }
    if (!session) {
      session = begin();
      *full = !session;
      if (!session) return nullptr;
      ++threads;
      current[request.key] = session;
      session->id = next_session++;
      session->tasks = lines_of(request.value);
      session->ask = std::move(ask);
      session->entered.resize(request.size);
      session->joined.resize(request.size);
      for (auto at = sessions.begin(); at != sessions.end();)
        at = at->second.expired() ? sessions.erase(at) : std::next(at);
      sessions[session->id] = session;
      *begun = true;
    }
    session->entered[request.rank] = true;
    gather(*session, replies);
    return session;
  }

  // Whether the answer has to be waited for.
  bool step(Session& session, const wire::MeetingRequest& request, const Answer& answer,
            Replies* replies) {
    if (session.code != 0) {
      reply(replies, answer, session.code, session.why);
      return false;
    }
    switch (request.kind) {
      case wire::Meeting::kEnter:
        if (session.stage == Session::kAsking || session.stage == Session::kGathering) return true;
        reply(replies, answer, 0,
              session.stage == Session::kJoining ? wire::encode_session(session.id)
                                                 : outcome(session));
        return false;
      case wire::Meeting::kSet: {
        if (session.stage != Session::kJoining) break;
        if (session.values.size() >= 2 * session.tasks.size() * (session.tasks.size() + 1)) {
          reply(replies, answer, TW_CODE_RESOURCE_EXHAUSTED,
                "the members have set too many values");
          return false;
        }
        session.values[request.key] = request.value;
        for (auto at = session.waiting.begin(); at != session.waiting.end();) {
          const bool waits =
              at->second.kind == wire::Meeting::kGet && at->second.key == request.key;
          if (waits) reply(replies, std::move(at->second.answer), 0, request.value);
          at = waits ? session.waiting.erase(at) : std::next(at);
        }
        reply(replies, answer, 0, "");
        return false;
      }
      case wire::Meeting::kGet: {
        if (session.stage != Session::kJoining) break;
        const auto found = session.values.find(request.key);
        if (found == session.values.end()) return true;
        reply(replies, answer, 0, found->second);
        return false;
      }
      case wire::Meeting::kJoined:
        if (session.stage == Session::kJoining) {
          session.joined[request.rank] = true;
          if (!request.value.empty()) decide(session, false, replies);
        }
        if (session.stage == Session::kJoining) {
          if (!session.all(session.joined)) return true;
          decide(session, true, replies);
        }
        reply(replies, answer, 0, outcome(session));
        return false;
    }
    reply(replies, answer, TW_CODE_FAILED_PRECONDITION, "the members do not join a group now");
    return false;
  }

  // ---- a thread of each session that has begun; without the lock ----

  void look_after(const std::shared_ptr<Session>& session) {
    bool together = true;
    Replies replies;
    std::unique_lock<std::mutex> lock(mutex);
    for (const std::string& task : session->tasks) {
      if (!together || session->stage != Session::kAsking) break;
      lock.unlock();
      together = session->ask(task) == Presence::kJoins;
      lock.lock();
    }
    if (session->stage == Session::kAsking) {
      if (together) {
        session->stage = Session::kGathering;
        gather(*session, &replies);
      } else {
        decide(*session, false, &replies);
      }
    }
    const auto flush = [&] {
      lock.unlock();
      send(std::exchange(replies, {}));
      lock.lock();
    };
    flush();
    while (session->stage == Session::kGathering && !closed) {
      changed.wait_for(lock, kLook,
                       [&] { return session->stage != Session::kGathering || closed; });
      const std::vector<bool> entered = session->entered;
      for (size_t i = 0; i < entered.size() && session->stage == Session::kGathering; ++i) {
        if (entered[i]) continue;
        lock.unlock();
        const bool gone = session->ask(session->tasks[i]) == Presence::kGone;
        lock.lock();
        if (gone && session->stage == Session::kGathering && !session->entered[i])
          fail(*session, TW_CODE_UNAVAILABLE, session->tasks[i] + " is gone", &replies);
      }
      flush();
    }
    if (session->stage == Session::kJoining) {
      changed.wait_for(lock, kJoin, [&] { return session->stage != Session::kJoining || closed; });
      if (session->stage == Session::kJoining) decide(*session, false, &replies);
    }
    session->ask = nullptr;  // it keeps the cluster's connections
    --threads;
    lock.unlock();
    send(replies);
  }
};

MeetingPlace::MeetingPlace() : state_(std::make_shared<State>()) {}

MeetingPlace::~MeetingPlace() {
  Replies replies;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
    for (auto& [identity, session] : state_->current)
      state_->fail(*session, TW_CODE_UNAVAILABLE, "the worker has ended", &replies);
    state_->changed.notify_all();
  }
  send(replies);
}

uint64_t MeetingPlace::take(const wire::MeetingRequest& request, Ask ask, Answer answer) {
  Replies replies;
  uint64_t id = 0;
  std::shared_ptr<Session> begun;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    id = state_->next_id++;
    std::shared_ptr<Session> session;
    bool first = false, full = false;
    if (request.kind == wire::Meeting::kEnter) {
      const std::vector<std::string> tasks = lines_of(request.value);
      if (tasks.size() == request.size && all_differ(tasks))
        session = state_->enter(request, std::move(ask), &replies, &first, &full);
    } else if (const auto at = state_->sessions.find(request.session);
               at != state_->sessions.end()) {
      session = at->second.lock();
    }
    if (full)
      reply(&replies, answer, TW_CODE_RESOURCE_EXHAUSTED, "too many groups meet here at a time");
    else if (!session || session->tasks.size() != request.size)
      reply(&replies, answer, TW_CODE_INVALID_ARGUMENT, "there is no such meeting");
    else if (state_->step(*session, request, answer, &replies))
      session->waiting.emplace(id,
                               Waiting{request.kind, request.rank, request.key, std::move(answer)});
    if (first) begun = session;
  }
  send(replies);
  if (begun &&
      !start_detached("tensorwire-meet", [state = state_, begun] { state->look_after(begun); })) {
    replies.clear();
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      begun->ask = nullptr;
      --state_->threads;
      state_->fail(*begun, TW_CODE_RESOURCE_EXHAUSTED, "no thread is to be had for the meeting",
                   &replies);
    }
    send(replies);
  }
  return id;
}

void MeetingPlace::drop(uint64_t id) {
  Replies replies;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    for (auto& [identity, session] : state_->current) {
      const auto at = session->waiting.find(id);
      if (at == session->waiting.end()) continue;
      const Waiting dropped = std::move(at->second);
      session->waiting.erase(at);
      reply(&replies, dropped.answer, TW_CODE_CANCELLED, "who asked waits no more");
      // It has been cancelled, or it is gone: the others would wait for it in vain.
      if (dropped.kind == wire::Meeting::kEnter)
        state_->fail(*session, TW_CODE_UNAVAILABLE,
                     session->tasks[dropped.rank] + " has left the others", &replies);
      break;
    }
  }
  send(replies);
}

}  // namespace tensorwire
