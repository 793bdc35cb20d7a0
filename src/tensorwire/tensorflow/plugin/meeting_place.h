// SPDX-License-Identifier: Apache-2.0
// Where the members of a group of collectives meet: at the worker of the first of them. There it is
// decided, for all of them, whether their collectives go by a group of ranks, and there the ranks
// exchange what they need to join it. Needs no TensorFlow.
//
// A session is one attempt of the members to get together. All of them join groups, or the session
// comes to nothing; all have entered it before any joins; and all have joined, or none uses it. A
// member that waits no more for the others to enter ends it; one that enters for a second time
// begins a new session. Each has a thread, and there are so many of these at a time: it leaves as
// soon as its session is over, or once whom it asks then has answered.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "wire.h"

namespace tensorwire {

class MeetingPlace {
 public:
  // code 0: `text` is what is asked for. Else a TW_CODE_* and why.
  using Answer = std::function<void(int code, const std::string& text)>;
  enum class Presence { kJoins, kDoesNot, kGone };
  // Asks a worker; blocks, for some seconds at most.
  using Ask = std::function<Presence(const std::string& task)>;

  MeetingPlace();
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  // Ends all sessions.
  ~MeetingPlace();

  // Calls `answer` once, on any thread: at once, or when all members have come so far. `ask` is of
  // the cluster that the request belongs to. What is returned drops it.
  uint64_t take(const wire::MeetingRequest& request, Ask ask, Answer answer);
  // Who asked waits no more: CANCELLED, where there was no answer yet.
  void drop(uint64_t id);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace tensorwire
