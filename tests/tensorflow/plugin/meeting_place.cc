// SPDX-License-Identifier: Apache-2.0
// Members of a group meet, or do not, all of them alike.
#include "meeting_place.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tensorwire.h"

namespace tensorwire {
namespace {

using Presence = MeetingPlace::Presence;

template <class Done>
bool eventually(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// An answer that is waited for.
class Answered {
 public:
  MeetingPlace::Answer take() {
    return [state = state_](int code, const std::string& text) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->code = code;
      state->text = text;
      ++state->count;
      state->changed.notify_all();
    };
  }
  bool yet() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->count != 0;
  }
  int code() const {
    wait();
    return state_->code;
  }
  std::string text() const {
    wait();
    return state_->text;
  }
  uint64_t session() const {
    REQUIRE(code() == 0);
    uint64_t session = 0;
    REQUIRE(wire::decode_session(text(), &session) == "");
    return session;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
    int code = 0;
    std::string text;
  };
  void wait() const {
    std::unique_lock<std::mutex> lock(state_->mutex);
    REQUIRE(state_->changed.wait_for(lock, std::chrono::seconds(20),
                                     [this] { return state_->count != 0; }));
    CHECK(state_->count == 1);
  }
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Two members at one place.
struct Pair {
  MeetingPlace place;
  MeetingPlace::Ask ask = [](const std::string&) { return Presence::kJoins; };
  uint64_t session = 0;

  Answered say(wire::Meeting kind, uint32_t rank, const std::string& key = "",
               const std::string& value = "", uint32_t size = 2) {
    wire::MeetingRequest request;
    request.kind = kind;
    request.rank = rank;
    request.size = size;
    request.session = session;
    request.key = key;
    request.value = value;
    Answered answered;
    last = place.take(request, ask, answered.take());
    return answered;
  }
  Answered enter(uint32_t rank) { return say(wire::Meeting::kEnter, rank, "group", "a\nb\n"); }
  void both_enter() {
    const Answered first = enter(0), second = enter(1);
    session = first.session();
    CHECK(session != 0);
    CHECK(second.session() == session);
  }
  uint64_t last = 0;
};

TEST_CASE("meeting: members that have all entered exchange values, and use what all have joined") {
  Pair pair;
  pair.both_enter();
  const Answered got = pair.say(wire::Meeting::kGet, 1, "key");
  CHECK_FALSE(got.yet());
  CHECK(pair.say(wire::Meeting::kSet, 0, "key", "value").code() == 0);
  CHECK(got.text() == "value");
  CHECK(pair.say(wire::Meeting::kGet, 0, "key").text() == "value");
  const Answered joined = pair.say(wire::Meeting::kJoined, 0);
  CHECK_FALSE(joined.yet());
  CHECK(pair.say(wire::Meeting::kJoined, 1).session() == pair.session);
  CHECK(joined.session() == pair.session);
}

TEST_CASE(
    "meeting: one worker that joins no groups, or cannot be asked, leaves all of them apart") {
  for (const Presence presence : {Presence::kDoesNot, Presence::kGone}) {
    Pair pair;
    pair.ask = [=](const std::string& task) { return task == "b" ? presence : Presence::kJoins; };
    CHECK(pair.enter(0).session() == 0);
    CHECK(pair.enter(1).session() == 0);
  }
}

TEST_CASE("meeting: one member that could not join leaves all of them apart") {
  Pair pair;
  pair.both_enter();
  const Answered joined = pair.say(wire::Meeting::kJoined, 0);
  const Answered waits = pair.say(wire::Meeting::kGet, 0, "key");
  CHECK(pair.say(wire::Meeting::kJoined, 1, "", "no transport is left").session() == 0);
  CHECK(joined.session() == 0);
  CHECK(waits.code() == TW_CODE_ABORTED);
  CHECK(pair.say(wire::Meeting::kSet, 0, "key", "late").code() == TW_CODE_FAILED_PRECONDITION);
}

TEST_CASE("meeting: a member that dies before it has entered is told to those that wait for it") {
  Pair pair;
  const auto asked = std::make_shared<std::atomic<int>>(0);
  pair.ask = [asked](const std::string& task) {
    return task == "b" && asked->fetch_add(1) > 0 ? Presence::kGone : Presence::kJoins;
  };
  const Answered first = pair.enter(0);
  CHECK(first.code() == TW_CODE_UNAVAILABLE);
  CHECK(first.text() == "b is gone");
}

TEST_CASE("meeting: a member that leaves before all have entered is told to those that wait") {
  Pair pair;
  const Answered left = pair.say(wire::Meeting::kEnter, 0, "three", "a\nb\nc\n", 3);
  const uint64_t id = pair.last;
  const Answered waits = pair.say(wire::Meeting::kEnter, 1, "three", "a\nb\nc\n", 3);
  pair.place.drop(id);
  CHECK(left.code() == TW_CODE_CANCELLED);
  CHECK(waits.code() == TW_CODE_UNAVAILABLE);
  CHECK(waits.text() == "a has left the others");
  // One that comes late hears of it, too.
  CHECK(pair.say(wire::Meeting::kEnter, 2, "three", "a\nb\nc\n", 3).code() == TW_CODE_UNAVAILABLE);
}

TEST_CASE("meeting: so many groups at a time, and as many again once these are over") {
  Pair pair;
  std::vector<Answered> first;
  int code = 0;
  for (int i = 0; i < 300; ++i) {
    const Answered entered = pair.say(wire::Meeting::kEnter, 0, std::to_string(i), "a\nb\n");
    if (entered.yet() && (code = entered.code()) != 0) break;
    first.push_back(entered);
  }
  CHECK(code == TW_CODE_RESOURCE_EXHAUSTED);
  CHECK(first.size() == 256);
  const Answered other = pair.say(wire::Meeting::kEnter, 1, "0", "a\nb\n");
  pair.session = other.session();
  CHECK(pair.say(wire::Meeting::kJoined, 0, "", "no transport is left").session() == 0);
  // Once its thread has ended, too.
  CHECK(eventually([&] {
    const Answered more = pair.say(wire::Meeting::kEnter, 0, "more", "a\nb\n");
    if (!more.yet()) return true;
    REQUIRE(more.code() == TW_CODE_RESOURCE_EXHAUSTED);
    return false;
  }));
}

// Whoever is asked does not answer before it is let go.
class Held {
 public:
  // `asked` counts, and is let go of with the session.
  MeetingPlace::Ask ask(std::shared_ptr<std::atomic<int>> asked) {
    return [state = state_, asked](const std::string&) {
      ++*asked;
      std::unique_lock<std::mutex> lock(state->mutex);
      state->changed.wait(lock, [&] { return state->open; });
      return Presence::kJoins;
    };
  }
  void let_go() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    bool open = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST_CASE("meeting: who begins one anew, again and again, has no more threads than others") {
  Pair pair;
  Held held;
  const auto asked = std::make_shared<std::atomic<int>>(0);
  pair.ask = held.ask(asked);
  int begun = 0, code = 0;
  for (; begun < 300 && code == 0; ++begun) {
    const Answered entered = pair.enter(0);
    if (entered.yet())
      code = entered.code();
    else
      CHECK(eventually([&] { return *asked == begun + 1; }));
  }
  CHECK(code == TW_CODE_RESOURCE_EXHAUSTED);
  CHECK(begun == 257);
  pair.ask = [](const std::string&) { return Presence::kJoins; };
  held.let_go();
  CHECK(eventually([&] { return asked.use_count() == 1; }));
  pair.both_enter();
}

TEST_CASE("meeting: of a session that is over, nobody is asked any more") {
  Pair pair;
  Held held;
  const auto asked = std::make_shared<std::atomic<int>>(0);
  pair.ask = held.ask(asked);
  const Answered first = pair.enter(0);
  CHECK(eventually([&] { return *asked == 1; }));
  pair.ask = [](const std::string&) { return Presence::kJoins; };
  pair.both_enter();
  CHECK(first.code() == TW_CODE_ABORTED);
  held.let_go();
  CHECK(eventually([&] { return asked.use_count() == 1; }));
  CHECK(*asked == 1);
}

TEST_CASE("meeting: a task is no member twice") {
  Pair pair;
  CHECK(pair.say(wire::Meeting::kEnter, 0, "group", "a\na\n").code() == TW_CODE_INVALID_ARGUMENT);
}

// As where the container has no more threads: no stack is to be had.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 47);
    REQUIRE(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_CASE("meeting: without a thread for it, a meeting comes to nothing") {
  Pair pair;
  {
    const NoThreads none;
    CHECK(pair.enter(0).code() == TW_CODE_RESOURCE_EXHAUSTED);
  }
  pair.both_enter();
}

TEST_CASE("meeting: a member that enters again begins a new session, and ends the old one") {
  Pair pair;
  const Answered first = pair.enter(0);
  const Answered again = pair.enter(0);
  CHECK(first.code() == TW_CODE_ABORTED);
  const Answered other = pair.enter(1);
  CHECK(again.session() == other.session());
  CHECK(again.session() != 0);
  const uint64_t before = again.session();
  pair.both_enter();
  CHECK(pair.session != before);
}

TEST_CASE("meeting: who waits no more is dropped, and a place that ends answers all") {
  auto pair = std::make_unique<Pair>();
  pair->both_enter();
  const Answered dropped = pair->say(wire::Meeting::kGet, 1, "key");
  pair->place.drop(pair->last);
  CHECK(dropped.code() == TW_CODE_CANCELLED);
  pair->place.drop(pair->last);
  const Answered waits = pair->say(wire::Meeting::kGet, 1, "key");
  pair = nullptr;
  CHECK(waits.code() == TW_CODE_UNAVAILABLE);
}

TEST_CASE("meeting: what fits no session is refused, and values are bounded") {
  Pair pair;
  pair.both_enter();
  Pair stranger;
  CHECK(stranger.say(wire::Meeting::kGet, 0, "key").code() == TW_CODE_INVALID_ARGUMENT);
  CHECK(pair.say(wire::Meeting::kEnter, 0, "group", "a\n").code() == TW_CODE_INVALID_ARGUMENT);
  int code = 0;
  for (int i = 0; code == 0 && i < 100; ++i)
    code = pair.say(wire::Meeting::kSet, 0, std::to_string(i), "v").code();
  CHECK(code == TW_CODE_RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace tensorwire
